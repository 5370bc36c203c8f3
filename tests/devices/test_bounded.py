from __future__ import annotations

import threading
import time

import pytest

from jupyter_gpuslice.devices.bounded import BoundedCalls, HungError


def test_answers_and_errors_pass_through():
    calls = BoundedCalls("test", 20)
    assert calls(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls(lambda: 1 // 0)
    assert calls(lambda: 8) == 8
    calls.close()


def test_a_stuck_call_refuses_the_next_at_once_and_heals():
    calls = BoundedCalls("test", 0.3)
    gate = threading.Event()
    with pytest.raises(HungError):
        calls(gate.wait)
    begin = time.monotonic()
    for _ in range(20):
        with pytest.raises(HungError):
            calls(lambda: 1)
    assert time.monotonic() - begin < 0.3
    gate.set()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert calls(lambda: 1) == 1
            break
        except HungError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    calls.close()


def test_callers_from_many_threads_take_turns():
    calls = BoundedCalls("test", 20)
    inside = []
    most = []

    def work():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    threads = [threading.Thread(target=calls, args=(work,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 10
    calls.close()
