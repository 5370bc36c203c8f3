"""Prometheus metrics in the server's own ``/metrics``. What is unknown is absent, never zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .runtime import BrokerRuntime

MIB = 2**20
DEVICE = ["device", "name", "kind"]


class PoolMetrics(Collector):
    """Reads the runtime when it is asked, and so costs nothing between two scrapes."""

    def __init__(
        self, runtime: Callable[[], BrokerRuntime | None], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        registry.register(self)

    def close(self) -> None:
        self._registry.unregister(self)

    def describe(self) -> list[Metric]:
        return []  # asked for at registration, when there is no pool yet

    def collect(self) -> Iterator[Metric]:
        runtime = self._runtime()
        if runtime is None:
            return
        total = GaugeMetricFamily(
            "gpuslice_device_memory_bytes", "Memory that the pool may grant.", labels=DEVICE
        )
        held = GaugeMetricFamily(
            "gpuslice_device_held_bytes", "Memory that leases hold.", labels=DEVICE
        )
        used = GaugeMetricFamily(
            "gpuslice_device_used_bytes", "Memory in use, as measured.", labels=DEVICE
        )
        busy = GaugeMetricFamily(
            "gpuslice_device_utilization_ratio", "Compute in use, as measured.", labels=DEVICE
        )
        up = GaugeMetricFamily(
            "gpuslice_device_up", "1 for a device that works, 0 for one that failed.", labels=DEVICE
        )
        broker = runtime.broker
        free, lost = broker.free(), broker.lost
        for member in broker.pool:
            device = member.device
            labels = [device.uuid, device.name, device.kind]
            total.add_metric(labels, member.memory_mib * MIB)
            if device.uuid not in lost:
                held.add_metric(labels, (member.memory_mib - free[device.uuid].memory_mib) * MIB)
            use = runtime.latest.devices.get(device.uuid)
            if use is not None and use.used_mib is not None:
                used.add_metric(labels, use.used_mib * MIB)
            if use is not None and use.utilization_percent is not None:
                busy.add_metric(labels, use.utilization_percent / 100)
            if use is not None and use.health != "unknown":
                up.add_metric(labels, float(use.health == "ok"))
        yield from (total, held, used, busy, up)
        states = GaugeMetricFamily("gpuslice_leases", "Leases by state.", labels=["state"])
        for state, count in sorted(Counter(lease.state for lease in broker.leases()).items()):
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily(
            "gpuslice_queue_length", "Requests that wait.", value=len(broker.queue())
        )
        seconds = CounterMetricFamily(
            "gpuslice_busy_device_seconds", "Compute used by leases, as measured."
        )
        seconds.add_metric([], runtime.busy_seconds)
        yield seconds
