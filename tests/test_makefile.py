"""The set-up by make says little, unless it fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(recipe: str) -> subprocess.CompletedProcess[str]:
    """Run a target of the test's own beside those of the Makefile."""
    if not shutil.which("make"):
        pytest.skip("needs make")
    return subprocess.run(
        ["make", f"--eval=probe:\n\t{recipe}", "probe"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        # As on a command line, also where make itself runs the tests.
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        check=False,
    )


def test_a_quiet_command_shows_what_it_printed_only_when_it_fails() -> None:
    done = make("$(call quietly,Building,echo noise && echo more >&2)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Building …\n", "")
    failed = make("$(call quietly,Building,echo noise && echo more >&2 && exit 3)")
    assert failed.returncode != 0
    assert failed.stdout == "Building …\n"
    assert failed.stderr.startswith("noise\nmore\n")
    assert "Error 3" in failed.stderr


def test_the_set_up_runs_nothing_that_is_loud() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    rules = text.partition("what the targets above stand on")[2]
    for line in rules.splitlines():
        if re.search(r"\bjlpm\b", line):
            assert "$(call quietly," in line
        if re.search(r"PIP\) install\b", line):
            assert "install -q" in line
