"""Prometheus metrics of a cluster as the hub sees it. What is unknown is absent, never zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .session import Session
from .view import ClusterView

MIB = 2**20
DEVICE = ["device", "name", "kind"]
UNITS = ["node", "resource"]


class Shown(Protocol):
    """What there is to measure."""

    @property
    def sessions(self) -> Sequence[Session]: ...

    @property
    def view_of_cluster(self) -> ClusterView | None: ...


class ClusterMetrics(Collector):
    """Counts when it is asked."""

    def __init__(self, shown: Shown, registry: CollectorRegistry) -> None:
        self._shown = shown
        registry.register(self)

    def describe(self) -> list[Metric]:
        return []  # asked for at registration, when there is no cluster yet

    def collect(self) -> Iterator[Metric]:
        view = self._shown.view_of_cluster
        answers = view is not None and not view.behind
        yield GaugeMetricFamily(
            "gpuslice_cluster_up", "1 while the cluster's API answers.", value=float(answers)
        )
        if view is None:
            return
        total = GaugeMetricFamily(
            "gpuslice_device_memory_bytes", "Memory that the pool may grant.", labels=DEVICE
        )
        held = GaugeMetricFamily(
            "gpuslice_device_held_bytes", "Memory that leases hold.", labels=DEVICE
        )
        up = GaugeMetricFamily(
            "gpuslice_device_up", "1 for a device that works, 0 for one that failed.", labels=DEVICE
        )
        there = GaugeMetricFamily(
            "gpuslice_node_devices", "What a node counts of a resource.", labels=UNITS
        )
        free = GaugeMetricFamily("gpuslice_node_devices_free", "What is free of it.", labels=UNITS)
        for item in view.facts.items:
            labels = [item.uuid, item.name, item.kind]
            if item.memory_mib is not None:
                total.add_metric(labels, item.memory_mib * MIB)
                if item.free_mib is not None:
                    held.add_metric(labels, (item.memory_mib - item.free_mib) * MIB)
            if item.health != "unknown":
                up.add_metric(labels, float(item.health == "ok"))
            if item.units is not None:
                there.add_metric([item.node, item.units.resource], item.units.count)
                if item.units.free is not None:
                    free.add_metric([item.node, item.units.resource], item.units.free)
        yield from (total, held, up, there, free)
        live = [session for session in self._shown.sessions if session.live]
        states = GaugeMetricFamily("gpuslice_leases", "Leases by state.", labels=["state"])
        for state, count in sorted(Counter(session.state for session in live).items()):
            states.add_metric([state], count)
        yield states
        waiting = sum(session.state == "queued" for session in live)
        yield GaugeMetricFamily("gpuslice_queue_length", "Requests that wait.", value=waiting)
