"""The service's page, without a hub."""

from __future__ import annotations

from jupyter_gpuslice.hub.page import index_page

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
}
LEASE = {
    "state": "active",
    "request": "0.5",
    "holder": {"user": "<script>", "name": ""},
    "slices": [{"memory_mib": 1024}],
    "used": {"memory_mib": None, "utilization_percent": 7},
}


def test_everything_is_escaped_and_what_is_unknown_says_so() -> None:
    text = index_page(POOL, [LEASE], "/hub/", "</script><b>")
    assert "<i>A100" not in text
    assert "&lt;i&gt;A100&lt;/i&gt; (simulated)" not in text.replace("(simulated)", "")
    assert "<script>" in text  # our own
    assert text.count("<script>") == 1
    assert text.count("</script>") == 1
    assert "&lt;ben&gt; (x)" in text
    assert "somebody else" in text
    assert text.count("unknown") >= 3
    assert "None" not in text
    assert "1.0 GiB of 2.0 GiB" in text
    assert "about 10 min" in text
    assert "7 %" in text


def test_a_machine_without_a_gpu_says_why() -> None:
    empty = {**POOL, "devices": [], "queue": [], "note": "No driver answers.", "admin": False}
    text = index_page(empty, [], "/hub/", "x")
    assert "No driver answers." in text
    assert "What you hold" in text
    assert "Nobody waits." in text
