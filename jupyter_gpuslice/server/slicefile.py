"""The small file by which a kernel learns of its slice (docs/architecture.md)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SliceFile:
    """One kernel's file, mode 0600, replaced as a whole so that nobody reads half of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._version = 0
        self._content: dict[str, Any] | None = None

    def write(
        self, lease: Mapping[str, Any] | None, env: Mapping[str, str | None], message: str
    ) -> bool:
        """Write what is new; whether anything was. ``OSError`` when the disk fails."""
        content = {"lease": lease, "env": dict(env), "message": message}
        if content == self._content:
            return False
        self._version += 1
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".slice-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump({"version": self._version, **content}, file)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise
        self._content = content
        return True

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
