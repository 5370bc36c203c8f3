"""The script that stands in for a person at a browser."""

from __future__ import annotations

import pytest

from jupyter_gpuslice.demo.check import cell_of_example, choose
from jupyter_gpuslice.demo.hub import DemoError, free_ports
from jupyter_gpuslice.demo.visitor import Form, Visitor, forms_of

PAGE = """
<form action="/search"><input name="q"></form>
<form action="/hub/spawn?_xsrf=abc" method="post">
  <input type="hidden" name="_xsrf" value="abc">
  <input type="radio" name="choice" value="slice/0.25">
  <input type="radio" name="choice" value="slice/0.5" checked>
  <input type="radio" name="choice" value="whole/2" disabled>
  <select name="image"><option value="a">A</option><option value="b" selected>B</option></select>
  <select name="size"><option value="s">S</option><option value="l">L</option></select>
  <input type="text" name="custom.x" value="">
  <input type="submit" name="go" value="Start">
</form>
"""


def test_forms_are_read_as_a_browser_would_send_them() -> None:
    search, spawn = forms_of(PAGE)
    assert search.values == {"q": ""}
    assert spawn.action == "/hub/spawn?_xsrf=abc"
    assert spawn.values == {
        "_xsrf": "abc",
        "choice": "slice/0.5",
        "image": "b",
        "size": "s",
        "custom.x": "",
    }
    assert spawn.choices["choice"] == ["slice/0.25", "slice/0.5"], "disabled ones are not offered"


def test_choose_finds_the_request_in_any_profile() -> None:
    form = Form(choices={"choice": ["cpu/0", "mem/10GiB/50%", "whole/2"]})
    choose(form, "2")
    assert form.values == {"choice": "whole/2"}
    choose(form, "10GiB/50%")
    assert form.values == {"choice": "mem/10GiB/50%"}
    with pytest.raises(DemoError, match=r"no 0\.5"):
        choose(form, "0.5")


def test_the_token_that_goes_with_an_address() -> None:
    """Hub and servers keep tokens of one name apart by path; the closest path counts."""
    visitor = Visitor("http://127.0.0.1:8000/", "ana")
    visitor._session.cookies.set("_xsrf", "of-hub", path="/hub/")
    visitor._session.cookies.set("_xsrf", "of-server", path="/user/ana/")
    assert visitor.xsrf("http://127.0.0.1:8000/hub/api/users/ana") == "of-hub"
    assert visitor.xsrf("http://127.0.0.1:8000/user/ana/api/kernels") == "of-server"
    assert visitor.xsrf("http://127.0.0.1:8000/services/x/") == ""
    visitor.close()


def test_an_answer_that_is_no_success_is_an_error_without_the_query() -> None:
    visitor = Visitor("http://127.0.0.1:9/", "ana")
    answer = type(
        "Answer",
        (),
        {
            "ok": False,
            "url": "http://127.0.0.1:9/hub/spawn?_xsrf=s3cret",
            "status_code": 403,
            "headers": {"Content-Type": "application/json"},
            "request": type("Request", (), {"method": "POST"}),
            "json": lambda self: {"message": "No."},
        },
    )()
    with pytest.raises(DemoError, match=r"POST http://127.0.0.1:9/hub/spawn answered 403: No\."):
        visitor._checked(answer)
    visitor.close()


@pytest.mark.parametrize(
    "start", ["%gpu", "%gpu why", "%%gpu train -n 2", "%gpu pull", "%gpu stop"]
)
def test_the_example_has_the_cells_that_the_check_runs(start: str) -> None:
    assert cell_of_example(start).startswith(start)


def test_a_cell_that_is_missing_is_named() -> None:
    with pytest.raises(DemoError, match="no cell that starts with '%dance'"):
        cell_of_example("%dance")


def test_a_hub_that_does_not_answer_is_an_error_in_words() -> None:
    (port,) = free_ports(1)
    visitor = Visitor(f"http://127.0.0.1:{port}/", "ana")
    with pytest.raises(DemoError, match="hub/login got no answer: ConnectionError"):
        visitor.log_in("x")
    with pytest.raises(DemoError, match=r"No connection to http://127\.0\.0\.1"):
        visitor.connect("user/ana/api/kernels/1/channels?session_id=2")
    visitor.close()
