"""What the hub's service needs before it serves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.hub.service import Settings, check_alone
from jupyter_gpuslice.hub.upkeep import ServiceError

SETTINGS = Settings(secret="", hub=Process(1, "x"), ledger="ledger.sqlite")


def test_two_brokers_never_grant_the_same_devices() -> None:
    with pytest.raises(ServiceError, match=r"broker='/run/b\.sock'"):
        check_alone(SETTINGS, "/run/b.sock")
    check_alone(SETTINGS, "")
    # Simulated devices are nobody else's.
    check_alone(replace(SETTINGS, simulate="a100-80gb:1"), "/run/b.sock")
