# SPDX-License-Identifier: Apache-2.0
"""An aiohttp site that bad clients cannot fill.

A connection that is silent for too long in the midst of a request, or between two, is closed. There are never more connections than leave
descriptors for others: a new one takes the place of the one that was silent for longest. Connections whose requests are being dealt with
are left alone. Used in one event loop.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

CONNECTIONS_MAX = 4096
SILENCE_S = 75.0
_SWEEP_S = 1.0
_BACKLOG = 128

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _room() -> int:
    """Half of the descriptors: the other half is for what else the process does."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if descriptors == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, descriptors // 2))


class _Connection(asyncio.Protocol):
    """Hands everything on to aiohttp's protocol and remembers when there was a sign of life."""

    transport: asyncio.Transport

    def __init__(self, owner: Connections, protocol: asyncio.Protocol) -> None:
        self._owner, self.protocol = owner, protocol
        self.request: web.Request | None = None  # that is being dealt with
        self.since = time.monotonic()
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.protocol.connection_made(transport)
        self._owner._add(self)

    def data_received(self, data: bytes) -> None:
        self.since = time.monotonic()
        self.protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.since = time.monotonic()
        self.protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._remove(self)
        self.protocol.connection_lost(exc)

    def waits_for_peer(self) -> bool:
        """Whether it is the client's turn: to send the rest of a request, or to take the answer."""
        return self.request is None or not self.request.content.is_eof()

    def look(self, now: float) -> None:
        """An answer that gets smaller is a sign of life, too."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.since = unsent, now


class Connections:
    """The connections of one application, which needs `middleware`."""

    def __init__(self) -> None:
        self._all: dict[asyncio.BaseProtocol, _Connection] = {}  # by aiohttp's protocol
        self._sweeping: asyncio.TimerHandle | None = None

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        connection = self._all.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.request = request
        try:
            return await handler(request)
        except ConnectionError:
            if request.transport is not None:
                raise
            raise web.HTTPRequestTimeout from None  # nobody hears that; but it is no error of ours, to be logged at length
        finally:
            connection.request, connection.since = None, time.monotonic()

    def _add(self, connection: _Connection) -> None:
        self._all[connection.protocol] = connection
        if len(self._all) > _room():
            waiting = [one for one in self._all.values() if one.waits_for_peer()]
            self._close(min(waiting, key=lambda one: one.since))  # the new one, if there is no other
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _remove(self, connection: _Connection) -> None:
        self._all.pop(connection.protocol, None)

    def _close(self, connection: _Connection) -> None:
        self._remove(connection)
        connection.transport.abort()

    def _sweep(self) -> None:
        self._sweeping = None
        now = time.monotonic()
        for connection in list(self._all.values()):
            connection.look(now)
            if now - connection.since > SILENCE_S and connection.waits_for_peer():
                self._close(connection)
        if self._all:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)


class Site(web.BaseSite):
    """A TCPSite with those limits."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, connections: Connections) -> None:
        # One attempt to accept at a time: without descriptors the event loop complains once per attempt, and tries again as often.
        super().__init__(runner, backlog=1)
        self._host, self._port, self._connections = host, port, connections

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        serve = self._runner.server
        assert serve is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self._connections, serve()), self._host, self._port, backlog=self._backlog)
        self._server = server
        for listener in server.sockets:  # the kernel may keep more of them waiting for us
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as again:
                again.listen(_BACKLOG)
