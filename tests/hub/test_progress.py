"""What the spawn page tells while a start waits."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpuslice.hub.progress import amount_words, waiting_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5", "50 % of a GPU (0.5)"),
        ("1", "one GPU"),
        ("2", "2 GPUs"),
        ("h100:1", "one H100"),
        ("10GiB", "10 GiB of a GPU (10GiB)"),
        ("2x0.25", "2 × 25 % of a GPU (2x0.25)"),
    ],
)
def test_an_amount_is_said_in_words_and_as_it_is_written(text: str, words: str) -> None:
    assert amount_words(text) == words


@pytest.mark.parametrize(
    ("position", "estimate", "words"),
    [
        (1, None, ["position 1 in the queue (you are next)", "How long is unknown"]),
        (1, 60.0, ["you are next", "It takes about 60 s."]),
        (7, 7200.0, ["at position 7 in the queue.", "about 2.0 h"]),
    ],
)
def test_who_waits_is_told_where_how_long_and_how_to_leave(
    position: int, estimate: Any, words: list[str]
) -> None:
    text = waiting_words({"request": "0.5", "position": position, "estimate_s": estimate})
    for each in [*words, "you wait for 50 % of a GPU (0.5)", "Stop Server leaves the queue."]:
        assert each in text
    assert "None" not in text
