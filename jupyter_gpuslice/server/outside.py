"""The session that a provisioner finds itself in when it runs outside the session's server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..kernel.client import Client
from ..kernel.errors import GpuSliceError

CALL_SECONDS = 10.0


class OutsideSession:
    """Asks the session's server for slices, with the capability found in the environment.

    A server that cannot be reached costs a kernel its slice and nothing else.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._log = logging.getLogger(__name__)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> OutsideSession | None:
        if not (environ.get("JUPYTER_GPUSLICE_URL") and environ.get("JUPYTER_GPUSLICE_TOKEN")):
            return None
        try:
            return cls(Client.from_environment(environ))
        except GpuSliceError as error:
            logging.getLogger(__name__).warning("%s", error)
            return None

    async def prepare(
        self, kernel_id: str, wishes: Sequence[tuple[str, Any]], name: str, adapts: bool
    ) -> tuple[dict[str, str | None], str]:
        """What to set in the kernel's environment, and the folder for its path ("": none)."""
        body = {
            "id": kernel_id,
            "name": name,
            "adapts": adapts,
            "requests": [list(wish) for wish in wishes],
        }
        answer = await self._call("POST", "kernels", body)
        if not isinstance(answer, dict):
            # Not what belongs to whoever started us, and no device that is not ours.
            own = ("JUPYTER_GPUSLICE_KERNEL_ID", "JUPYTER_GPUSLICE_SLICE", "JUPYTER_GPUSLICE_LEASE")
            return {**dict.fromkeys(own), "CUDA_VISIBLE_DEVICES": ""}, ""
        return answer["env"], answer.get("path", "")

    async def launched(self, kernel_id: str, pid: int) -> None:
        await self._call("PATCH", f"kernels/{kernel_id}", {"pid": pid})

    async def ended(self, kernel_id: str) -> None:
        await self._call("DELETE", f"kernels/{kernel_id}")

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return await asyncio.to_thread(
                self._client.call, method, path, body, timeout=CALL_SECONDS
            )
        except GpuSliceError as error:
            self._log.warning("The session's GPU broker: %s", error)
            return None
