"""Kernel websockets without Nagle's algorithm.

Jupyter Server writes several small messages for each cell; with Nagle and delayed acknowledgements
each round trip then takes some 40 ms more than it needs to.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptKernelConnection(ZMQChannelsWebsocketConnection):
    """The server's own connection, with ``TCP_NODELAY`` on its socket."""

    def connect(self) -> Any:
        self.websocket_handler.set_nodelay(True)
        return super().connect()


def make_prompt(serverapp: Any, settings: dict[str, Any]) -> None:
    """Use it unless somebody chose another class.

    ``settings`` are the extension's, which the web application takes over once the extension has
    made them (what is written to the application's own before is overwritten then); its handlers
    look the class up there for each connection.
    """
    if serverapp.kernel_websocket_connection_class is ZMQChannelsWebsocketConnection:
        serverapp.kernel_websocket_connection_class = PromptKernelConnection
        settings["kernel_websocket_connection_class"] = PromptKernelConnection
