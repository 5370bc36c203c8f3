"""Peer groups end to end: real kernels, real gloo."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_gpuslice.broker.explain import Refused

from .support import USER, Server, alive, play, until

pytestmark = pytest.mark.slow


def kernelspec(base: Path, name: str, code: str) -> None:
    """A kernel that runs ``code``."""
    folder = base / "kernels" / name
    folder.mkdir(parents=True)
    argv = [sys.executable, "-c", code, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": name, "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))


def test_a_cell_runs_on_all_ranks_and_they_stay_warm() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        assert server.manager.get(group)["state"] == "ready"
        pids = server.pids(group)
        assert len(set(pids)) == 2
        first = (await server.run(group, "import os; x = int(os.environ['RANK']) + 1")).well()
        assert first.done["ranks"] == {"0": "ok", "1": "ok"}
        second = (await server.run(group, "print('x', x); x * 10")).well()
        assert second.text(0) == "x 1\n"
        assert second.text(1) == "x 2\n"
        assert second.of("result", 1)[0]["data"]["text/plain"] == "20"
        some = (await server.run(group, "print('one')", ranks=[1])).well()
        assert [m["rank"] for m in some.of("stream")] == [1]
        assert server.pids(group) == pids
        ended = await server.manager.stop(group)
        assert ended["state"] == "stopped"
        assert not any(alive(pid) for pid in pids)

    play(scenario)


def test_a_reply_that_comes_after_the_kernel_is_idle_ends_the_wait(monkeypatch) -> None:
    """The two come on sockets of their own, in either order."""
    monkeypatch.setattr("jupyter_gpuslice.groups.members.REPLY_SECONDS", 120.0)

    async def scenario(server: Server) -> None:
        group = await server.group(2)
        for _ in range(100):
            await asyncio.wait_for(server.run(group, "pass"), 60)

    play(scenario)


def test_environment_is_that_of_torchrun() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        code = "import os; print(*(os.environ.get(n) for n in '{}'.split()))".format(
            "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR"
            " TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT"
        )
        reply = (await server.run(group, code)).well()
        assert reply.text(0) == "0 0 2 2 0 127.0.0.1 True 0\n"
        assert reply.text(1) == "1 1 2 2 0 127.0.0.1 True 0\n"
        ports = await server.run(group, "print(os.environ['MASTER_PORT'])")
        assert ports.text(0) == ports.text(1) != ""
        busy = "import torch.distributed as dist; dist.barrier()"
        (await server.run(group, busy, train=True)).well()
        for pid in server.pids(group):
            open_ports = psutil.Process(pid).net_connections("inet")
            heard = [c.laddr.ip for c in open_ports if c.status == psutil.CONN_LISTEN]
            assert set(heard) <= {"127.0.0.1"}, "a rank listens to the world"
        port = int(ports.text(0))
        socket.create_connection(("127.0.0.1", port)).close()
        await server.manager.stop(group)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()

    play(scenario)


TRAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 4); y = x.sum(1, keepdim=True)
losses = []
for step in range(30):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
weights = [w.item() for w in model.module.weight.detach().flatten()]
dist.destroy_process_group()
"""


def test_ddp_trains_and_the_same_cell_works_again() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2, "0.5")
        reply = (await server.run(group, TRAIN, train=True)).well()
        assert any("gloo" in m["text"] for m in reply.of("status"))
        assert server.manager.get(group)["backend"] == "gloo"
        show = "print(losses[0] > 10 * losses[-1], weights)"
        shown = (await server.run(group, show)).well()
        assert shown.text(0).startswith("True")
        assert shown.text(0) == shown.text(1)
        (await server.run(group, TRAIN, train=True)).well()
        (await server.run(group, TRAIN + TRAIN, train=True)).well()

    play(scenario)


def test_the_process_group_is_there_and_a_second_init_is_accepted() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        code = """
import torch, torch.distributed as dist
assert dist.is_initialized()
dist.init_process_group("nccl", world_size=7)
dist.init_process_group()
t = torch.ones(1); dist.all_reduce(t); print(t.item(), dist.get_world_size())
"""
        for _ in range(2):
            reply = (await server.run(group, code, train=True)).well()
            assert reply.text(1) == "2.0 2\n"
            words = reply.text(0, "stderr")
            assert "not nccl" in words
            assert "not 7" in words
        quick = (await server.run(group, "dist.barrier()", train=True)).well()
        assert not quick.of("status"), "the process group was made again without need"
        again = "dist.destroy_process_group(); dist.init_process_group(); dist.barrier()"
        (await server.run(group, again)).well()
        (await server.run(group, "dist.barrier()", train=True)).well()

    play(scenario)


def test_env_init_works_in_a_plain_run() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        code = """
from torch.distributed import init_process_group, all_reduce, destroy_process_group
import torch
for n in range(2):
    init_process_group("gloo", init_method="env://")
    t = torch.ones(1); all_reduce(t); print(t.item())
    destroy_process_group()
"""
        assert (await server.run(group, code)).well().text(1) == "2.0\n2.0\n"

    play(scenario)


@pytest.mark.parametrize("blocked", ["dist.all_reduce(torch.ones(4))", "dist.barrier()"])
def test_one_failing_rank_ends_the_cell_on_all(blocked: str) -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(3)
        pids = server.pids(group)
        (await server.run(group, "import torch, torch.distributed as dist\nkept = 5")).well()
        code = f"""
if dist.get_rank() == 1:
    raise ValueError("rank one says no")
{blocked}
"""
        began = time.monotonic()
        reply = await server.run(group, code, train=True)
        assert time.monotonic() - began < 8
        assert not reply.done["ok"]
        assert reply.error["rank"] == 1
        assert reply.error["ename"] == "ValueError"
        assert "rank one says no" in "\n".join(reply.error["traceback"])
        assert reply.done["ranks"] == {"0": "interrupted", "1": "error", "2": "interrupted"}
        after = (await server.run(group, "print(kept); dist.barrier()", train=True)).well()
        assert after.text(2) == "5\n"
        assert server.pids(group) == pids

    play(scenario)


def test_interrupt_of_sleeping_ranks() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(4)
        pids = server.pids(group)
        cell = server.start(group, "import time; print('asleep'); time.sleep(600)")
        await cell.printed("asleep", 4)
        assert server.manager.get(group)["state"] == "busy"
        await server.manager.interrupt(group)
        assert await cell.end() < 2
        assert cell.error["ename"] == "KeyboardInterrupt"
        assert set(cell.done["ranks"].values()) == {"interrupted"}
        assert (await server.run(group, "print(1)")).well().text(3) == "1\n"
        assert server.pids(group) == pids

    play(scenario)


def test_interrupt_of_a_rank_that_waits_in_a_collective() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        pids = server.pids(group)
        code = """
import torch, torch.distributed as dist, time
kept = 1
print("in")
dist.barrier() if dist.get_rank() else time.sleep(600)
"""
        cell = server.start(group, code, train=True)
        await cell.printed("in", 2)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await server.manager.interrupt(group)
        assert time.monotonic() - began < 4
        await cell.end()
        assert cell.error["ename"] == "KeyboardInterrupt"
        assert (await server.run(group, "print(kept); dist.barrier()", train=True)).well()
        assert server.pids(group) == pids

    play(scenario)


def test_a_rank_that_waits_for_a_key_of_the_store_is_freed_too() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        pids = server.pids(group)
        code = """
import torch, torch.distributed as dist
kept = 2
print("in")
if dist.get_rank():
    dist.distributed_c10d._get_default_store().get("never")
"""
        cell = server.start(group, code, train=True)
        await cell.printed("in", 2)
        await asyncio.sleep(0.3)
        await server.manager.interrupt(group)
        await cell.end()
        after = (await server.run(group, "print(kept); dist.barrier()", train=True)).well()
        assert after.text(1) == "2\n"
        assert server.pids(group) == pids

    play(scenario)


def test_a_stuck_rank_is_restarted_alone() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        pids = server.pids(group)
        code = """
import os, signal, time
kept = 3
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print("in")
time.sleep(600)
"""
        cell = server.start(group, code)
        await cell.printed("in", 2)
        await server.manager.interrupt(group)
        await cell.end()
        assert cell.done["ranks"] == {"0": "interrupted", "1": "restarted"}
        assert any("Rank 1" in m["text"] for m in cell.of("notice"))
        after = (await server.run(group, "print('kept' in globals())")).well()
        assert after.text(0) == "True\n"
        assert after.text(1) == "False\n"
        now = server.pids(group)
        assert now[0] == pids[0]
        assert now[1] != pids[1]

    play(scenario)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_frees_the_others_and_is_started_anew(victim: int) -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(3, "0.25")
        pids = server.pids(group)
        code = f"""
import torch, torch.distributed as dist, time
kept = 1
print("in")
time.sleep(600) if dist.get_rank() == {victim} else dist.barrier()
"""
        cell = server.start(group, code, train=True)
        await cell.printed("in", 3)
        await asyncio.sleep(0.3)
        os.kill(pids[victim], signal.SIGKILL)
        assert await cell.end() < 15
        assert cell.error["rank"] == victim
        assert "SIGKILL" in cell.error["evalue"]
        assert any("variables are gone" in m["text"] for m in cell.of("notice"))
        now = server.pids(group)
        assert [a == b for a, b in zip(now, pids, strict=True)] == [r != victim for r in range(3)]
        lease = server.broker.get(server.manager.get(group)["lease"])
        assert lease is not None
        assert lease.state == "active"
        assert {process.pid for process in lease.processes} == set(now)
        check = "import torch.distributed as dist; dist.barrier(); print('kept' in globals())"
        after = (await server.run(group, check, train=True)).well()
        assert [after.text(r) for r in range(3)].count("True\n") == 2

    play(scenario)


def test_children_that_hold_a_dead_ranks_connections_hang_nobody() -> None:
    """As data loaders do: forked from a rank, they keep its sockets open."""

    async def scenario(server: Server) -> None:
        group = await server.group(2)
        code = """
import os, time, torch.distributed as dist
if dist.get_rank() == 1:
    if os.fork() == 0:
        time.sleep(600)
    print("in")
    time.sleep(600)
print("in")
dist.barrier()
"""
        cell = server.start(group, code, train=True)
        await cell.printed("in", 2)
        await asyncio.sleep(0.3)
        os.kill(server.pids(group)[1], signal.SIGKILL)
        assert await cell.end() < 15
        assert cell.error["rank"] == 1
        assert cell.done["ranks"] == {"0": "interrupted", "1": "died"}

    play(scenario)


def test_a_rank_that_dies_between_cells_and_the_only_rank_too() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(1, "1")
        os.kill(server.pids(group)[0], signal.SIGKILL)
        await until(
            lambda: server.manager.get(group)["state"] == "broken", "the death went unnoticed", 5
        )
        reply = (await server.run(group, "print('again')")).well()
        assert reply.text(0) == "again\n"
        assert any("started anew" in m["text"] for m in reply.of("notice"))
        lease = server.broker.get(server.manager.get(group)["lease"])
        assert lease is not None
        assert lease.state == "active"

    play(scenario)


def test_exits_of_scripts() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        fine = (await server.run(group, "import sys, os\nprint('bye')\nsys.exit(0)")).well()
        assert fine.text(0) == "bye\n"
        assert not fine.text(0, "stderr")
        bad = await server.run(group, "sys.exit('no data')")
        assert bad.error["ename"] == "SystemExit"
        hard = await server.run(group, "os._exit(3) if os.environ['RANK'] == '1' else None")
        assert hard.error["rank"] == 1
        assert "exit code 3" in hard.error["evalue"]

    play(scenario)


def test_errors_are_shown_once() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        syntax = await server.run(group, "this is no python")
        assert syntax.error["ename"] == "SyntaxError"
        name = await server.run(group, "nowhere")
        assert name.error["ename"] == "NameError"
        assert name.error["rank"] == 0
        assert name.done["ranks"] == {"0": "error", "1": "error"}
        asked = await server.run(group, "input('well?')")
        assert "input" in asked.error["evalue"]

    play(scenario)


def test_output_in_order_and_as_it_is() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        code = """
import sys, time
from IPython.display import display, clear_output
for n in range(200):
    sys.stderr.write(f"\\r{n}%"); sys.stdout.write(f"{n};"); sys.stdout.flush()
handle = display({"text/plain": "one"}, raw=True, display_id="d")
handle.update({"text/plain": "two"}, raw=True)
clear_output(wait=True)
print("last")
"""
        reply = (await server.run(group, code)).well()
        for rank in (0, 1):
            assert reply.text(rank, "stderr") == "".join(f"\r{n}%" for n in range(200))
            numbers = "".join(f"{n};" for n in range(200))
            assert reply.text(rank) == numbers + "last\n"
            shown = [m for m in reply.messages if m.get("rank") == rank]
            kinds = [m["type"] for m in shown if m["type"] != "stream"]
            assert kinds == ["display", "display", "clear"]
            assert [m["update"] for m in reply.of("display", rank)] == [False, True]
            assert shown[-1]["text"] == "last\n"
            assert reply.of("display", rank)[0]["transient"]["display_id"] == "d"

    play(scenario)


def test_output_comes_while_the_cell_runs() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        cell = server.start(group, "print('first', flush=True); import time; time.sleep(5)")
        await cell.printed("first", 2)
        assert not cell.of("done")
        await cell.leave()
        await until(lambda: server.manager.get(group)["state"] == "ready", "it went on", 4)

    play(scenario)


def test_a_flood_is_neither_lost_nor_many_messages() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(1)
        reply = (await server.run(group, "for n in range(100000): print(n)")).well()
        assert reply.text(0) == "".join(f"{n}\n" for n in range(100000))
        assert len(reply.of("stream")) < 500

    play(scenario)


def test_cells_queue() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(1)
        first = server.start(group, "import time; print('a'); time.sleep(1); x = 1")
        await first.printed("a", 1)
        second = (await server.run(group, "print(x)")).well()
        assert any("before this one" in m["text"] for m in second.of("status"))
        assert second.text(0) == "1\n"
        await first.end()

    play(scenario)


def test_push_and_pull() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        text = base64.b64encode(pickle.dumps({"x": [1, 2], "f": 2.5})).decode()
        code = "import os; y = (x, f, os.environ['RANK'])"
        reply = (await server.run(group, code, push=text, pull=["y", "f"])).well()
        values = {(m["rank"], m["name"]): m["pickle"] for m in reply.of("value")}
        assert pickle.loads(base64.b64decode(values[1, "y"])) == ([1, 2], 2.5, "1")
        assert len(values) == 4
        missing = await server.run(group, pull=["nothing"])
        assert "'nothing'" in missing.error["evalue"]
        (await server.run(group, "import threading; lock = threading.Lock()")).well()
        locked = await server.run(group, pull=["lock"])
        assert "'lock'" in locked.error["evalue"]
        large = await server.run(group, "big = b'x' * (70 << 20)", pull=["big"])
        assert "'big'" in large.error["evalue"]
        assert "too large" in large.error["evalue"]
        many = await server.run(group, "a = b = b'x' * (40 << 20)", pull=["a", "b"])
        assert "a, b together are too large" in many.error["evalue"]
        # A large reply comes long after the rank is done with it: no interrupt is made of that.
        reply = (await server.run(group, "c = b'x' * (30 << 20)", pull=["c"])).well()
        assert {m["rank"] for m in reply.of("value")} == {0, 1}
        leaves = base64.b64encode(b"csys\nexit\n(tR.").decode()
        assert not (await server.run(group, push=leaves)).done["ok"], "an exit moves nothing"
        broken = await server.run(group, push="nonsense")
        assert "unpickled" in broken.error["evalue"]
        assert server.manager.get(group)["state"] == "ready"

    play(scenario)


def test_a_group_that_cannot_start_leaves_nothing(tmp_path, monkeypatch) -> None:
    code = (
        "import os, sys\n"
        "if os.environ['RANK'] == '1': sys.exit('no license for rank 1')\n"
        "from ipykernel.kernelapp import launch_new_instance\nlaunch_new_instance()"
    )
    kernelspec(tmp_path, "halting", code)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    async def scenario(server: Server) -> None:
        with pytest.raises(Refused) as refused:
            await server.group(3, "0.5", kernel_name="halting")
        assert refused.value.reason == "start_failed"
        assert "no license for rank 1" in refused.value.message
        assert not server.left()
        assert not server.broker.leases()
        assert server.events[-1][0] == "ended"
        with pytest.raises(Refused) as unknown:
            await server.group(1, kernel_name="nowhere")
        assert "nowhere" in unknown.value.message

    play(scenario)


def test_without_torch_other_code_runs_and_training_says_why(tmp_path, monkeypatch) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ipykernel.kernelapp import launch_new_instance\nlaunch_new_instance()"
    )
    kernelspec(tmp_path, "plain", code)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    async def scenario(server: Server) -> None:
        group = await server.group(2, kernel_name="plain")
        assert (await server.run(group, "print(6 * 7)")).well().text(1) == "42\n"
        reply = await server.run(group, "print('not reached')", train=True)
        assert "not installed" in reply.error["evalue"]
        assert not reply.of("started")
        assert (await server.run(group, "print(1)")).well()
        assert (await server.manager.reset(group))["state"] == "ready"

    play(scenario)


def test_a_group_ends_with_its_notebook_and_gives_back_what_was_lent() -> None:
    async def scenario(server: Server) -> None:
        notebook = await server.notebook()
        with pytest.raises(Refused):
            await server.group(2, "1", kernel=notebook)
        group = await server.group(2, "1", kernel=notebook, lend=True)
        pids = server.pids(group)
        states = {lease.holder.kind: lease.state for lease in server.broker.leases()}
        assert states == {"kernel": "queued", "group": "active"}
        await server.manager.stop(group)
        states = {lease.holder.kind: lease.state for lease in server.broker.leases()}
        assert states == {"kernel": "active"}
        group = await server.group(2, "1", kernel=notebook, lend=True)
        pids = server.pids(group)
        cell = server.start(group, "import time; print('in'); time.sleep(600)")
        await cell.printed("in", 2)
        os.kill(server.kernels.get_kernel(notebook).provisioner.pid, signal.SIGKILL)
        await until(lambda: not any(map(alive, pids)), "the ranks outlived the notebook", 5)
        await cell.end()
        await until(lambda: not server.broker.leases(), "the lease outlived the ranks", 5)
        assert not server.manager.list(USER)

    play(scenario, simulate="a100-80gb:2")


def test_a_queued_group_starts_by_itself_and_its_cell_tells_of_the_wait() -> None:
    async def scenario(server: Server) -> None:
        first = await server.group(2, "1", name="first")
        with pytest.raises(Refused) as refused:
            await server.group(2, "1", name="second")
        assert refused.value.reason == "insufficient_memory"
        second = await server.group(2, "1", name="second", wait=True)
        assert server.manager.get(second)["state"] == "starting"
        cell = server.start(second, "print('at last')")
        await until(lambda: bool(cell.of("status")), "nothing was said of the wait")
        assert "2 workers of 1: place 1" in cell.of("status")[0]["text"]
        third = await server.group(1, "1", name="third", wait=True)
        await server.manager.stop(third)
        await server.manager.stop(first)
        await cell.end()
        assert cell.well().text(1) == "at last\n"

    play(scenario, simulate="a100-80gb:2")


def test_a_slice_that_could_not_be_put_in_place_is_given_back_and_asked_for_anew() -> None:
    visible = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'] != '')"

    async def scenario(server: Server) -> None:
        group = await server.group(1, "0.5", hold="cell")
        assert (await server.run(group, visible)).well().text(0) == "True\n"
        (lease,) = server.broker.leases()
        assert lease.state == "parked"
        (pid,) = server.pids(group)
        os.kill(pid, signal.SIGSTOP)  # it cannot take what it is given
        cell = server.start(group, "1")
        await until(lambda: server.broker.get(lease.id).state == "active", "it was not resumed")
        await server.manager.interrupt(group)
        await cell.end()
        assert not cell.done["ok"]
        # Its only rank had to be ended, and the lease with it: nothing stays held.
        assert all(not lease.holds for lease in server.broker.leases())
        assert (await server.run(group, visible)).well().text(0) == "True\n"
        assert [lease.state for lease in server.broker.leases()] == ["parked"]

    play(scenario)


def test_an_interrupt_while_a_slice_is_put_in_place_leaves_nothing_half_done() -> None:
    visible = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'] != '')"

    async def scenario(server: Server) -> None:
        group = await server.group(2, "0.5", hold="cell")
        assert (await server.run(group, visible)).well()
        pid = server.pids(group)[1]
        os.kill(pid, signal.SIGSTOP)
        cell = server.start(group, "1")
        (lease,) = server.broker.leases()
        await until(lambda: server.broker.get(lease.id).state == "active", "it was not resumed")
        stopping = asyncio.ensure_future(server.manager.interrupt(group))
        await asyncio.sleep(1)
        os.kill(pid, signal.SIGCONT)  # in time: it lives, and so does its lease
        await stopping
        await cell.end()
        assert not cell.done["ok"]
        assert server.pids(group)[1] == pid
        assert [lease.state for lease in server.broker.leases()] == ["parked"]
        reply = (await server.run(group, visible)).well()
        assert [reply.text(rank) for rank in (0, 1)] == ["True\n", "True\n"]

    play(scenario)


@pytest.mark.parametrize(
    "spoil",
    [
        # init_process_group of one rank fails half way.
        "import os, torch.distributed as dist\n"
        "dist.destroy_process_group()\n"
        "dist.init_process_group('nccl' if os.environ['RANK'] == '0' else 'gloo')",
        # The count that is part of the store's keys differs between ranks.
        "import os, torch.distributed.distributed_c10d as c10d\n"
        "c10d.destroy_process_group()\n"
        "c10d._world.group_count += int(os.environ['RANK'])",
    ],
)
def test_a_process_group_that_failed_in_the_making_is_made_by_the_next_cell(spoil: str) -> None:
    meet = (
        "import torch, torch.distributed as dist; t = torch.ones(1); dist.all_reduce(t); print(t)"
    )

    async def scenario(server: Server) -> None:
        group = await server.group(2)
        (await server.run(group, "kept = 5", train=True)).well()
        await server.run(group, spoil, train=True)
        reply = (await server.run(group, meet + "; print(kept)", train=True)).well()
        assert [reply.text(rank) for rank in (0, 1)] == ["tensor([2.])\n5\n"] * 2
        await server.run(group, spoil, train=True)
        assert (await server.manager.reset(group))["state"] == "ready"
        (await server.run(group, meet, train=True)).well()

    play(scenario)


def test_a_rank_that_dies_while_another_is_started_anew_is_started_too() -> None:
    die = (
        "import os, threading\n"
        "if os.environ['RANK'] == '1': threading.Timer(0.7, lambda: os._exit(9)).start()\n"
        "else: os._exit(1)"
    )

    async def scenario(server: Server) -> None:
        group = await server.group(2)
        for _ in range(2):
            await server.run(group, die)
            reply = (await server.run(group, "print(1)")).well()
            assert [reply.text(rank) for rank in (0, 1)] == ["1\n", "1\n"]
        assert server.manager.get(group)["state"] == "ready"

    play(scenario)


def test_what_goes_wrong_unexpectedly_is_mended_by_the_next_cell(monkeypatch) -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)

        async def fails(*args: Any) -> Any:
            raise RuntimeError("nobody thought of this")

        with monkeypatch.context() as patched:
            patched.setattr("jupyter_gpuslice.groups.cell._execute", fails)
            reply = await server.run(group, "1")
            assert "nobody thought of this" in reply.error["evalue"]
        (await server.run(group, "1")).well()
        with pytest.raises(Refused, match="lone surrogate"):
            server.manager.execute(group, {"code": "'\ud800'"})

    play(scenario)


def test_a_group_whose_ranks_all_died_has_its_slices_back_from_its_notebook() -> None:
    async def scenario(server: Server) -> None:
        notebook = await server.notebook()
        group = await server.group(2, "1", kernel=notebook, lend=True)
        reply = await server.run(group, "import os; os._exit(3)", lend=True)
        assert "started anew" in reply.of("notice")[0]["text"]
        (await server.run(group, "print(1)", lend=True)).well()
        states = {lease.holder.kind: lease.state for lease in server.broker.leases()}
        assert states == {"kernel": "queued", "group": "active"}

    play(scenario, simulate="a100-80gb:2")


@pytest.mark.parametrize("action", ["train", "reset"])
def test_a_stopped_rank_holds_up_nothing_that_is_interrupted(action: str) -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        (await server.run(group, "kept = os = 1", train=True)).well()
        os.kill(server.pids(group)[1], signal.SIGSTOP)
        work: Any
        if action == "train":
            cell = server.start(group, "1", train=True)
            work = cell._task
        else:
            work = asyncio.ensure_future(server.manager.reset(group))
        await asyncio.sleep(1)
        assert not work.done()
        await asyncio.wait_for(server.manager.interrupt(group), 30)
        await asyncio.wait({work}, timeout=30)
        assert work.done()
        reply = (await server.run(group, "print('kept' in dir())", train=True)).well()
        assert reply.text(0) == "True\n", "the other rank keeps its variables"

    play(scenario)


def test_a_reset_whose_asker_has_left_ends() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2)
        (await server.run(group, "1", train=True)).well()
        os.kill(server.pids(group)[1], signal.SIGSTOP)
        reset = asyncio.ensure_future(server.manager.reset(group))
        await asyncio.sleep(1)
        reset.cancel()
        (await asyncio.wait_for(server.run(group, "print(1)"), 60)).well()

    play(scenario)


def test_a_rank_that_stays_busy_after_its_cell_can_be_interrupted() -> None:
    busy = "import asyncio, time\nasyncio.get_running_loop().call_soon(time.sleep, 600)"

    async def scenario(server: Server) -> None:
        group = await server.group(1, "0.5", hold="cell")
        cell = server.start(group, busy)
        await asyncio.sleep(2)
        await asyncio.wait_for(server.manager.interrupt(group), 30)
        await cell.end()
        (await asyncio.wait_for(server.run(group, "1"), 60)).well()
        (lease,) = server.broker.leases()
        assert lease.state == "parked"

    play(scenario)


def test_a_group_of_the_same_notebook_waits_for_the_one_that_is_being_ended() -> None:
    async def scenario(server: Server) -> None:
        notebook = await server.notebook()
        server.broker.release(server.broker.leases()[0].id)
        making = asyncio.ensure_future(server.group(2, "1", kernel=notebook))
        await asyncio.sleep(0.3)
        making.cancel()
        await asyncio.wait({making})
        group = await server.group(2, "1", kernel=notebook)
        (await server.run(group, "1")).well()

    play(scenario, simulate="a100-80gb:2")


def test_children_of_a_group_without_a_gpu_go_with_it_as_well() -> None:
    code = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '8888'], start_new_session=True)\nprint(child.pid)"
    )

    async def scenario(server: Server) -> None:
        group = await server.group(1)
        pid = int((await server.run(group, code)).well().text(0))
        assert alive(pid)
        await server.manager.stop(group)
        await until(lambda: not alive(pid), "the child outlived its group", 10)

    play(scenario)


def test_what_threads_print_between_cells_is_shown_with_the_next() -> None:
    code = "import threading\nthreading.Timer(0.5, print, ['late']).start()\nprint('now')"

    async def scenario(server: Server) -> None:
        group = await server.group(1)
        assert (await server.run(group, code)).well().text(0) == "now\n"
        await asyncio.sleep(1.5)
        assert (await server.run(group, "print('next')")).well().text(0) == "late\nnext\n"
        reply = await server.run(group, "%gpu")
        assert reply.done["ok"] is True or "works in the notebook" in str(reply.messages)

    play(scenario)


def test_a_ledger_that_fails_costs_no_cell(monkeypatch) -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(1, "0.5", hold="cell")
        database = server.runtime.ledger._db
        cell = server.start(group, "import time; time.sleep(1); print('ran')")
        await cell.printed("", 1)
        await asyncio.sleep(0.5)
        database.execute("PRAGMA query_only = ON")
        await cell.end()
        assert cell.well().text(0) == "ran\n"
        assert "could not be given back" in cell.of("notice")[0]["text"]
        database.execute("PRAGMA query_only = OFF")
        (await server.run(group, "1")).well()
        assert [lease.state for lease in server.broker.leases()] == ["parked"]

    play(scenario)


def test_a_revoked_lease_ends_its_group() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2, "0.5")
        pids = server.pids(group)
        server.broker.revoke(server.manager.get(group)["lease"], "Maintenance.")
        await until(lambda: server.events[-1][0] == "ended", "the group went on")
        assert not any(map(alive, pids))
        last = server.events[-1][1]
        assert "Maintenance" in last["detail"]

    play(scenario)


def test_reset_keeps_variables_and_refusals_say_why() -> None:
    async def scenario(server: Server) -> None:
        group = await server.group(2, name="g")
        cell = server.start(group, "import time; kept = 4; print('in'); time.sleep(600)")
        await cell.printed("in", 2)
        assert (await server.manager.reset(group))["state"] == "ready"
        await cell.end()
        code = "import torch.distributed as dist; dist.barrier(); print(kept)"
        assert (await server.run(group, code, train=True)).well().text(0) == "4\n"
        with pytest.raises(Refused) as exists:
            await server.group(2, name="g")
        assert exists.value.reason == "group_exists"
        for body, words in (
            ({"code": "1", "ranks": [2]}, "no rank 2"),
            ({"code": "1", "ranks": [0], "train": True}, "every rank"),
            ({}, "nothing to do"),
        ):
            with pytest.raises(Refused, match=words):
                server.manager.execute(group, body)
        with pytest.raises(Refused, match="NCCL cannot be used"):
            await server.group(2, backend="nccl", name="n")
        with pytest.raises(Refused) as nobody:
            server.manager.execute("g0", {"code": "1"})
        assert nobody.value.reason == "not_found"

    play(scenario)
