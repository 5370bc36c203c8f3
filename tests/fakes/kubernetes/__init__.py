"""A strict stand-in for a Kubernetes API server, its scheduler and a node's kubelet.

    cluster = Cluster()                          # serves on a free loopback port, in a thread
    cluster.node("n1", gpus=4, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    cluster.kubeconfig(path)                     # for any client
    cluster.fail(429, seconds=20)                # from now on, for so long
    cluster.stop()

It refuses what the real one refuses, in its words. tests/kubernetes/test_conformance.py holds for
both; what is not there (admission webhooks, other schedulers, most kinds) is not pretended.
"""

from __future__ import annotations

from .cluster import Cluster

__all__ = ["Cluster"]
