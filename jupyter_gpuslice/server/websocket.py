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


def make_prompt(serverapp: Any) -> None:
    """Use it unless somebody chose another class; once the web application is made.

    Earlier the server cannot tell its own choice yet (a gateway has a class of its own). Its
    handlers look the class up in the settings for each connection.
    """
    if serverapp.kernel_websocket_connection_class is ZMQChannelsWebsocketConnection:
        serverapp.kernel_websocket_connection_class = PromptKernelConnection
        serverapp.web_app.settings["kernel_websocket_connection_class"] = PromptKernelConnection
