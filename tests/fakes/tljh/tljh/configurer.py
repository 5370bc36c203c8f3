"""What ``tljh-config`` has set."""

from __future__ import annotations

import os
from typing import Any


def load_config() -> dict[str, Any]:
    return {"base_url": os.environ["TLJH_DOUBLE_BASE_URL"]}
