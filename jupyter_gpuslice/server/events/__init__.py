"""Events of leases, the pool and groups, through Jupyter's own event system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..runtime import News

SCHEMAS = "https://jupyter-gpuslice.readthedocs.io/schemas"
NAMES = ("lease", "pool", "group", "notice")


class Events:
    """Emits through an event logger; a fault there never reaches a broker."""

    def __init__(self, event_logger: Any, log: Any) -> None:
        self._logger = event_logger
        self._log = log
        self._seen: set[str] = set()
        for name in NAMES:
            event_logger.register_event_schema(Path(__file__).with_name(f"{name}.yaml"))

    def runtime_listener(
        self,
        lease_dict: Callable[[Any], dict[str, Any]],
        pool_dict: Callable[[], dict[str, Any]],
    ) -> Callable[[News], None]:
        """What to subscribe to a runtime."""

        def listen(news: News) -> None:
            if news.lease is None:
                self.emit("pool", {"pool": pool_dict()})
                return
            lease = news.lease
            if not lease.live:
                action = "ended"
                self._seen.discard(lease.id)
            else:
                action = "changed" if lease.id in self._seen else "created"
                self._seen.add(lease.id)
            self.emit("lease", {"action": action, "lease": lease_dict(lease)})

        return listen

    def group(self, action: str, group: dict[str, Any]) -> None:
        self.emit("group", {"action": action, "group": group})

    def notice(self, level: str, message: str, kernel: str | None) -> None:
        self.emit("notice", {"level": level, "message": message, "kernel": kernel})

    def emit(self, name: str, data: dict[str, Any]) -> None:
        try:
            self._logger.emit(schema_id=f"{SCHEMAS}/{name}/v1", data=data)
        except Exception:
            self._log.exception("The event %s could not be emitted", name)
