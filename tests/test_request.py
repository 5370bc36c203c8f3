"""The request grammar: what it takes, what it means and how it refuses."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jupyter_gpuslice.request import EXAMPLES, GpuRequest, RequestError

MEANINGS = {
    "0": GpuRequest("none"),
    "none": GpuRequest("none"),
    "0.0": GpuRequest("none"),
    "auto": GpuRequest("auto"),
    "AUTO": GpuRequest("auto"),
    "0.25": GpuRequest("fraction", fraction=Fraction(1, 4)),
    ".25": GpuRequest("fraction", fraction=Fraction(1, 4)),
    " 0.250 ": GpuRequest("fraction", fraction=Fraction(1, 4)),
    "1": GpuRequest("fraction", fraction=Fraction(1)),
    "2": GpuRequest("fraction", 2, fraction=Fraction(1)),
    "2.0": GpuRequest("fraction", 2, fraction=Fraction(1)),
    "2x1": GpuRequest("fraction", 2, fraction=Fraction(1)),
    "2x0.5": GpuRequest("fraction", 2, fraction=Fraction(1, 2)),
    "2 x 0.5": GpuRequest("fraction", 2, fraction=Fraction(1, 2)),
    "10GiB": GpuRequest("memory", memory_mib=10240),
    "10gib": GpuRequest("memory", memory_mib=10240),
    "10 GiB": GpuRequest("memory", memory_mib=10240),
    "10GB": GpuRequest("memory", memory_mib=9536),
    "512MiB": GpuRequest("memory", memory_mib=512),
    "512MB": GpuRequest("memory", memory_mib=488),
    "1.5GiB": GpuRequest("memory", memory_mib=1536),
    "10GiB/50%": GpuRequest("memory", memory_mib=10240, compute_percent=50),
    "2x10GiB/50%": GpuRequest("memory", 2, memory_mib=10240, compute_percent=50),
    "2x10GiB": GpuRequest("memory", 2, memory_mib=10240),
    "1g.10gb": GpuRequest("mig", profile="1g.10gb"),
    "1g.10gb+me": GpuRequest("mig", profile="1g.10gb+me"),
    "mig:3g.40gb": GpuRequest("mig", profile="3g.40gb"),
    "2x1g.10gb": GpuRequest("mig", 2, profile="1g.10gb"),
    "h100:0.5": GpuRequest("fraction", fraction=Fraction(1, 2), model="h100"),
    "H100:0.5": GpuRequest("fraction", fraction=Fraction(1, 2), model="h100"),
    "a100-80gb:2": GpuRequest("fraction", 2, fraction=Fraction(1), model="a100-80gb"),
    "h100:mig:1g.10gb": GpuRequest("mig", profile="1g.10gb", model="h100"),
    "h100:auto": GpuRequest("auto", model="h100"),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_means(text: str) -> None:
    assert GpuRequest.parse(text) == MEANINGS[text]


@pytest.mark.parametrize("value", [0, 1, 2, 0.5, 0.25, 2.0])
def test_takes_the_numbers_of_a_form(value: float) -> None:
    assert GpuRequest.parse(value) == GpuRequest.parse(str(value))


REFUSED = {
    "": "empty",
    "   ": "empty",
    "x": "'x'",
    "x0.5": "'x0.5'",
    "5x": "how much",
    "0x0.5": "nothing",
    "-1": "'-1'",
    "1e3": "'1e3'",
    "nan": "'nan'",
    "inf": "'inf'",
    "1 0": "'1 0'",
    "1,5": "'1,5'",
    "٣": "'٣'",
    "０.5": "'０.5'",
    "0.001": "0.001",
    "0.0001GiB": "memory",
    "10Gi": "'Gi'",
    "10G": "'G'",
    "10GiB/0%": "0%",
    "10GiB/101%": "101%",
    "10GiB/5.5%": "'5.5%'",
    "10GiB/50": "'50'",
    "10GiB/": "''",
    "0.5/50%": "'0.5/50%'",
    "2x3": "counts twice",
    "2xauto": "'auto'",
    "5000": "5000",
    "h100:": "after the colon",
    ":0.5": "''",
    "h100:0": "contradiction",
    "a:b:1": "more than one model",
    "mig:5": "'5'",
    "9x9g.10gb.": "'9g.10gb.'",
    "$(id):1": "'$(id)'",
    "h100:0.5;rm": "'0.5;rm'",
    "1" * 101: "100 characters",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refuses_in_words(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        GpuRequest.parse(text)
    assert REFUSED[text] in str(refused.value)
    assert all(example in refused.value.hint for example in EXAMPLES)
    assert refused.value.reason == "bad_request"


@pytest.mark.parametrize("value", [None, True, [], {}, b"0.5", object()])
def test_refuses_what_is_no_text(value: object) -> None:
    with pytest.raises(RequestError):
        GpuRequest.parse(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("1.5", "2x0.75"), ("2.5", "3"), ("h100:1.5", "h100:2x0.75"), ("3.2", "4x0.8")],
)
def test_mixed_numbers_show_the_way(text: str, hint: str) -> None:
    with pytest.raises(RequestError) as refused:
        GpuRequest.parse(text)
    assert f"Write {hint} " in refused.value.hint
    GpuRequest.parse(hint)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(example: str) -> None:
    assert str(GpuRequest.parse(example)) == example


models = st.none() | st.from_regex(r"\A[a-z][a-z0-9]{0,8}(-[0-9]{1,3}gb)?\Z").filter(
    lambda model: model not in ("mig",)
)
counts = st.integers(1, 64)
hundredths = st.integers(1, 100).map(lambda n: Fraction(n, 100))
requests = st.one_of(
    st.just(GpuRequest("none")),
    st.builds(GpuRequest, st.just("auto"), model=models),
    st.builds(GpuRequest, st.just("fraction"), counts, hundredths, model=models),
    st.builds(
        GpuRequest,
        st.just("memory"),
        counts,
        memory_mib=st.integers(1, 2**21),
        compute_percent=st.none() | st.integers(1, 100),
        model=models,
    ),
    st.builds(
        GpuRequest,
        st.just("mig"),
        counts,
        profile=st.sampled_from(["1g.10gb", "1g.5gb+me", "3g.40gb", "7g.141gb"]),
        model=models,
    ),
)


@given(requests)
def test_round_trip(request: GpuRequest) -> None:
    text = str(request)
    assert GpuRequest.parse(text) == request
    assert str(GpuRequest.parse(text)) == text


@given(st.text(max_size=30) | st.from_regex(r"[0-9a-zA-Z:./%x+ -]{0,20}", fullmatch=True))
def test_any_text_is_a_request_or_refused_in_words(text: str) -> None:
    try:
        request = GpuRequest.parse(text)
    except RequestError as refused:
        assert refused.message and refused.hint
    else:
        assert GpuRequest.parse(str(request)) == request


@given(st.decimals("0.01", "1", places=4), st.integers(1, 2**20))
def test_never_more_than_it_says(value: object, memory: int) -> None:
    request = GpuRequest.parse(str(value))
    assert request.fraction == Fraction(str(value))
    assert int(memory * (request.fraction or 0)) <= memory * Fraction(str(value))


@given(st.integers(1, 10**6), st.sampled_from(["MB", "GB", "MiB"]))
def test_memory_is_rounded_down(amount: int, unit: str) -> None:
    bytes_ = amount * {"MB": 10**6, "GB": 10**9, "MiB": 2**20}[unit]
    assume(2**20 <= bytes_ < 2**50)
    mib = GpuRequest.parse(f"{amount}{unit}").memory_mib
    assert mib is not None and mib * 2**20 <= bytes_ < (mib + 1) * 2**20


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "fraction"},
        {"kind": "fraction", "fraction": Fraction(1, 3)},
        {"kind": "fraction", "fraction": Fraction(2)},
        {"kind": "memory", "memory_mib": 0},
        {"kind": "auto", "count": 2},
        {"kind": "none", "fraction": Fraction(1)},
        {"kind": "mig", "profile": "1g.10gb", "compute_percent": 5},
        {"kind": "fraction", "fraction": Fraction(1), "count": 0},
    ],
)
def test_no_value_breaks_the_grammar(fields: dict) -> None:
    with pytest.raises(RequestError):
        GpuRequest(**fields)
