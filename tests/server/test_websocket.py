"""Kernel websockets answer at once: what the running server really uses, not what was set."""

from __future__ import annotations

import socket

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from jupyter_gpuslice.server.websocket import PromptKernelConnection, make_prompt


async def test_the_socket_of_a_kernel_does_not_wait_for_acknowledgements(
    server, jp_ws_fetch, monkeypatch
) -> None:
    seen: list[int] = []
    connect = PromptKernelConnection.connect

    async def look(self):
        await connect(self)
        stream = self.websocket_handler.ws_connection.stream
        seen.append(stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(PromptKernelConnection, "connect", look)
    kernel = await server.start_kernel()
    connection = await jp_ws_fetch("api", "kernels", kernel, "channels")
    assert await connection.read_message() is not None
    connection.close()
    assert seen == [1]


def test_a_class_that_somebody_chose_stays() -> None:
    class Chosen(ZMQChannelsWebsocketConnection):
        pass

    class Server:
        kernel_websocket_connection_class = Chosen

    settings: dict = {}
    make_prompt(Server(), settings)
    assert settings == {}
    assert Server.kernel_websocket_connection_class is Chosen
