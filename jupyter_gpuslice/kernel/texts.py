"""What the magics say at length: the help, and sentences about a kernel's own slice."""

from __future__ import annotations

HELP = """\
GPU slices in this kernel.

%gpu                            this kernel's slice, its use, the pool around it
%gpu request 0.5 [--wait] [--ttl 2h]
                                ask for a slice; --wait queues and waits for it
%gpu resize 0.75                change how much this kernel holds
%gpu release                    give it back
%gpu why 2                      would that be granted now; if not, why not
%gpu peers                      groups of this notebook and their ranks
%gpu push x y [--name g]        copy variables to every rank of a group
%gpu pull loss [--rank 0] [--name g]
                                bring a variable back (from several ranks: a list by rank)
%gpu reset [--name g]           re-make the process group; Python state stays
%gpu stop [--name g]            end a group and give its slices back

Over a cell:
%%gpu train -n 4 [request] [--name g] [--backend auto|nccl|gloo] [--show 0,2] [--wait] [--fresh]
                                run it on every rank of a group of 4 workers, each with that
                                request; the group is made on first use and warm after
%%gpu run [--ranks 0,2|0-2] [--name g] [--show 0,2]
                                run it on an existing group
%%gpu 0.5 [--fresh]             run it in a warm worker of its own that holds that slice while a
                                cell runs and keeps the cell's names for the next such cell

A request is a share of a GPU (0.5), memory (10GiB, 10GiB/50%), whole GPUs (2), slices on several
GPUs (2x0.5), a MIG profile (1g.10gb), any of them on a model (h100:0.5), or auto: what is free.
A group keeps its shape: another -n or request on the same name needs --fresh, since the variables
of its ranks are lost then. Where no name is given, "train" is meant, or else the only group there
is. Groups end with this kernel, also when it is restarted.
"""

ADD_WAIT = "Add --wait to queue for it."
OWN_LEASE = "This kernel itself holds {request}: `%gpu release` gives that back first."

RESTART_FIRST = (
    "{user} already uses CUDA in this kernel, and a process keeps the devices it began with. "
    "Restart the kernel (Kernel → Restart) and run `%gpu request {request}` before the first "
    "use of CUDA. `%gpu resize` changes the amount on the present device."
)
BEFOREHAND = (
    "{user} already uses CUDA in this kernel: on the same device the new amount holds at once; "
    "if the slice has to move to another one, a restart will be needed."
)
RELEASED_BUT = (
    "The lease is given back. {user} has initialised CUDA in this kernel, though: what CUDA itself "
    "holds, and what your variables still hold, stays on the device until the kernel restarts."
)
GAVE_WAY = (
    "This kernel's own slice (auto) gave way to the group; it comes back when there is room again."
)
WORKER = (
    "This cell runs in a worker of its own, which holds {request} while a cell runs in it and "
    "keeps the cell's names for the next such cell; `%gpu pull x --name cell` brings one here, "
    "`%gpu stop --name cell` ends it."
)
NEEDS_RESTART = "Restart the kernel to use this slice: CUDA keeps the devices it began with."
