"""Requests in Slurm's words, and the script of the job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config

from jupyter_gpuslice.hub.kube.patch import CannotExpressError
from jupyter_gpuslice.hub.slurm import GpuSliceSlurmSpawner, Slurm
from jupyter_gpuslice.hub.spawner import GpuSpawnError
from jupyter_gpuslice.request import GpuRequest

WHOLE = Slurm()
SHARDS = Slurm(shards=4)
MPS = Slurm(mps=True, types={"a100": "nvidia_a100-sxm4-80gb"})


@pytest.mark.parametrize(
    ("slurm", "request_", "gres"),
    [
        (WHOLE, "0", ""),
        (WHOLE, "1", "gpu:1"),
        (WHOLE, "a100:2", "gpu:a100:2"),
        (MPS, "a100:2", "gpu:nvidia_a100-sxm4-80gb:2"),
        (WHOLE, "1g.10gb", "gpu:1g.10gb:1"),
        (SHARDS, "0.25", "shard:1"),
        (SHARDS, "0.7", "shard:2"),
        (SHARDS, "h100:0.5", "shard:h100:2"),
        (MPS, "0.33", "mps:33"),
        (MPS, "a100:0.5", "mps:nvidia_a100-sxm4-80gb:50"),
    ],
)
def test_a_request_is_a_gres(slurm: Slurm, request_: str, gres: str) -> None:
    assert slurm.gres(GpuRequest.parse(request_)) == gres


@pytest.mark.parametrize("slurm", [WHOLE, SHARDS, MPS])
@pytest.mark.parametrize("request_", ["0.2", "10GiB", "2x0.5", "2x1g.10gb", "auto", "a100:5GiB"])
def test_a_refusal_offers_what_can_be_had(slurm: Slurm, request_: str) -> None:
    try:
        slurm.gres(GpuRequest.parse(request_))
    except CannotExpressError as error:
        assert error.nearest
        for option in error.nearest:
            assert slurm.gres(GpuRequest.parse(option))


PROFILES = {
    "profiles": [
        {"slug": "part", "choices": [{"request": "0.5"}, {"request": "1"}]},
        {"slug": "cpu", "request": "0"},
    ]
}


def spawner(options: dict[str, Any], **settings: Any) -> Any:
    config = Config({"GpuSliceSpawner": {"profiles": PROFILES}})
    config.GpuSliceSlurmSpawner.update(settings)
    user = SimpleNamespace(name="ana", groups=[], id=1, url="/user/ana/", spawners={})
    made = GpuSliceSlurmSpawner(config=config, user=user, user_options=options)
    made.req_homedir = "/home/ana"
    made.req_keepvars = "PATH"
    return made


def script(made: Any) -> str:
    async def make() -> str:
        made._chosen = await made.select(made.user_options)
        found: str = await made._get_batch_script(**made.get_req_subvars(), cmd="singleuser")
        return found

    return asyncio.run(make())


@pytest.mark.parametrize(
    ("options", "settings", "line"),
    [
        ({"profile": "part"}, {"slurm": {"shards": 2}}, "#SBATCH --gres=shard:1"),
        ({"profile": "part", "request": "1"}, {}, "#SBATCH --gres=gpu:1"),
        ({"profile": "part", "request": "1"}, {"req_gres": "lustre:1"}, "--gres=lustre:1,gpu:1"),
        ({}, {"slurm": {"mps": True}}, "#SBATCH --gres=mps:50"),
    ],
)
def test_the_job_asks_for_it(options: Any, settings: Any, line: str) -> None:
    text = script(spawner(options, **settings))
    assert line in text.splitlines() or line in text
    assert text.count("--gres=") == 1


def test_a_job_without_a_gpu_asks_for_none() -> None:
    assert "--gres" not in script(spawner({"profile": "cpu"}))


@pytest.mark.parametrize(
    "options", [{"gres": "gpu:8"}, {"cmd": "rm -rf /"}, {"options": "--nodes=9"}]
)
def test_options_that_batchspawner_would_put_into_the_script_are_refused(options: Any) -> None:
    with pytest.raises(GpuSpawnError, match="There is no option"):
        asyncio.run(spawner(options).start())


def test_what_slurm_cannot_give_is_told_before_a_job_is_made() -> None:
    with pytest.raises(GpuSpawnError, match="whole GPUs only"):
        asyncio.run(spawner({"profile": "part", "request": "0.5"}).start())
    made = spawner({})
    offers = asyncio.run(made.availability(["0.5", "1"])).offers
    assert offers["0.5"].never and not offers["1"].never


@pytest.mark.parametrize(
    ("request_", "most", "fit"),
    [
        ("1", 2, 2),
        ("0.5", 1, 2),
        ("0.5", 0.75, 1),
        # How much of a GPU an amount of memory is, nobody knows here: one may be within.
        ("10GiB", 0.5, 1),
        ("10GiB", 1, 1),
        ("10GiB", 2, 2),
        ("0", 0, 5),
    ],
)
def test_a_users_servers_come_to_no_more_than_they_may_hold_together(
    request_: str, most: float, fit: int
) -> None:
    declared = {
        "profiles": [{"slug": "own", "request": request_}],
        "policies": [{"concurrent": most}],
    }
    user = SimpleNamespace(name="ana", groups=[], id=1, url="/user/ana/", spawners={})
    config = Config({"GpuSliceSpawner": {"profiles": declared}})
    begun = 0
    for n in range(5):
        made: Any = GpuSliceSlurmSpawner(config=config, user=user, user_options={})
        user.spawners[str(n)] = made
        try:
            made._chosen = made.within_limits(asyncio.run(made.select({})))
        except GpuSpawnError as error:
            assert (error.status_code, error.reason) == (409, "over_quota")
        else:
            begun += 1
    assert begun == fit
