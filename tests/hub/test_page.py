"""The service's page, without a hub."""

from __future__ import annotations

import re

import pytest

from jupyter_gpuslice.hub.frame import Frame, content_policy
from jupyter_gpuslice.hub.page import error_page, index_page

FRAME = Frame("/hub/", "/services/gpuslice/", "<eve>")

POOL = {
    "devices": [
        {
            "uuid": "GPU-1",
            "name": "<i>A100</i>",
            "kind": "simulated",
            "memory_mib": 2048,
            "free_mib": 1024,
            "free_percent": 50,
            "used_mib": None,
            "utilization_percent": None,
            "health": "ok",
        }
    ],
    "isolation": "simulated",
    "queue": [
        {
            "position": 1,
            "request": "0.5",
            "estimate_s": None,
            "holder": {"user": None, "name": None},
        },
        {
            "position": 2,
            "request": "1",
            "estimate_s": 600,
            "holder": {"user": "<ben>", "name": "x"},
        },
    ],
    "note": "",
    "admin": True,
    "session": {"limits": None},
}
LEASE = {
    "state": "active",
    "request": "0.5",
    "holder": {"user": "<script>", "name": ""},
    "slices": [{"memory_mib": 1024}],
    "used": {"memory_mib": None, "utilization_percent": 7},
}


def test_everything_is_escaped_and_what_is_unknown_says_so() -> None:
    text = index_page(POOL, [LEASE], FRAME, "</script><b>")
    assert "<i>A100" not in text
    assert "&lt;i&gt;A100&lt;/i&gt; (simulated)" not in text.replace("(simulated)", "")
    assert "<script>" in text  # our own
    assert text.count("<script>") == text.count("</script>") == 2  # theme and renewal
    assert "<eve>" not in text
    assert "&lt;eve&gt;" in text
    assert "&lt;ben&gt; (x)" in text
    assert "somebody else" in text
    assert text.count("unknown") >= 3
    assert "None" not in text
    assert "1.0 GiB of 2.0 GiB" in text
    assert "about 10 min" in text
    assert "7 %" in text


def test_a_machine_without_a_gpu_says_why() -> None:
    empty = {**POOL, "devices": [], "queue": [], "note": "No driver answers.", "admin": False}
    text = index_page(empty, [], FRAME, "x")
    assert "No driver answers." in text
    assert "What you hold" in text
    assert "Nobody waits." in text


def links(text: str) -> list[tuple[str, str]]:
    return re.findall(r'<a [^>]*href="([^"]*)"[^>]*>([^<]+)</a>', text)


@pytest.mark.parametrize("admin", [False, True])
def test_the_bar_is_the_hub_s(admin: bool) -> None:
    text = Frame("/base/hub/", "/base/services/gpuslice/", "ana", admin).page("T", "")
    assert links(text) == [
        ("/base/hub/home", "Home"),
        ("/base/hub/token", "Token"),
        *([("/base/hub/admin", "Admin")] * admin),
        ("/base/services/gpuslice/", "GPUs"),
        ("/base/hub/logout", "Logout"),
    ]
    assert '"/base/hub/static/css/style.min.css"' in text
    assert '"/base/hub/logo"' in text


def test_an_error_page_leads_back_and_is_escaped() -> None:
    frame = Frame("/hub/", "/services/gpuslice/")
    text = error_page(404, "<i>", "<b>", frame)
    assert "<i>" not in text
    assert "<b>" not in text
    assert ("/services/gpuslice/", "GPUs of this machine") in links(text)
    assert "Page not found" in text
    assert "Logout" not in text, "nobody is known here"
    assert "Page not found" not in error_page(403, "No.", "", frame)


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        ("simulated", "Used is main memory that the programs of the holders have taken"),
        ("framework", "Used and busy are measured by the driver"),
    ],
)
def test_the_columns_of_use_say_what_they_count(isolation: str, words: str) -> None:
    assert words in index_page({**POOL, "isolation": isolation}, [LEASE], FRAME, "x")


def test_a_hub_of_another_host_may_give_its_look() -> None:
    assert "style-src 'unsafe-inline' 'self';" in content_policy("")
    assert "img-src data: 'self' https://hub.example;" in content_policy("https://hub.example")
    for host in ("", "https://hub.example"):
        assert content_policy(host).startswith("default-src 'none';")
        assert "connect-src 'self';" in content_policy(host)


def test_what_the_viewer_may_hold_and_does_is_told() -> None:
    assert "You hold" not in index_page(POOL, [], FRAME, "")
    limits = {"concurrent": 2, "gpu_hours": 40, "held": 0.5, "gpu_hours_used": 12.34}
    text = index_page({**POOL, "session": {"limits": limits}}, [], FRAME, "")
    assert (
        "You hold 0.5 of 2 GPUs at once and have used 12.3 of 40 GPU-hours of the last 7 days."
    ) in text


@pytest.mark.parametrize(
    ("why", "words"),
    [(None, ">ok<"), ("", ">ok; out of service<"), ("<fan>", ">ok; out of service: &lt;fan&gt;<")],
)
def test_a_device_out_of_service_says_why(why: str | None, words: str) -> None:
    device = {**POOL["devices"][0], "cordoned": why}
    assert words in index_page({**POOL, "devices": [device]}, [], FRAME, "")
