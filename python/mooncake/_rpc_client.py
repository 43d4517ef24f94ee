# SPDX-License-Identifier: Apache-2.0
"""The sending side of the RPC helper."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Iterator

from ._rpc_frames import ANSWER_FRAME

_JOINED_BYTES_MAX = 1 << 16
_BYTES_PER_EXTRA_SECOND = 1 << 30


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "[v6]:port". ValueError if it is neither."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r} is no address: an IPv6 address wants brackets")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: host:port or [v6]:port is expected")
    return host, int(port)


@dataclass
class _Target:
    idle: list[socket.socket] = field(default_factory=list)
    busy: int = 0  # connections in use
    users: int = 0  # and those who wait for one


class Client:
    """Sends messages and waits for their answers, over at most `pool_size` connections per target. Thread-safe."""

    def __init__(self, pool_size: int, timeout_s: float) -> None:
        self._pool_size, self._timeout_s = pool_size, timeout_s
        self._changed = threading.Condition()
        self._targets: dict[str, _Target] = {}  # those with connections only
        self._closed = False
        clients.add(self)

    def send(self, target: str, header: bytes, payload: memoryview) -> None:
        """Returns when the receiver has dealt with the message; OSError or ValueError if that is not known to have happened."""
        deadline = time.monotonic() + self._timeout_s + len(payload) / _BYTES_PER_EXTRA_SECOND
        address = split_address(target)
        with self._place(target, deadline) as entry:
            connection = _living(entry.idle) or socket.create_connection(address, _left(deadline))
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _exchange(connection, header, payload, deadline)
            except BaseException:
                connection.close()
                raise
            with self._changed:
                if self._closed:
                    connection.close()
                else:
                    entry.idle.append(connection)

    @contextlib.contextmanager
    def _place(self, target: str, deadline: float) -> Iterator[_Target]:
        """One of the target's `pool_size` places."""
        with self._changed:
            entry = self._targets.setdefault(target, _Target())
            entry.users += 1
            try:
                if not self._changed.wait_for(lambda: entry.busy < self._pool_size, _left(deadline)):
                    raise TimeoutError("all connections are in use")
                entry.busy += 1
            except BaseException:
                self._leave(target, entry)
                raise
        try:
            yield entry
        finally:
            with self._changed:
                entry.busy -= 1
                self._leave(target, entry)
                self._changed.notify_all()

    def _leave(self, target: str, entry: _Target) -> None:
        entry.users -= 1
        if not entry.users and not entry.idle:
            self._targets.pop(target, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for entry in self._targets.values():
                while entry.idle:
                    entry.idle.pop().close()

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._changed = threading.Condition()
        for entry in self._targets.values():
            for connection in entry.idle:
                connection.close()
        self._targets = {}


clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _living(idle: list[socket.socket]) -> socket.socket | None:
    """An idle connection whose other end has not closed it, so that a receiver that restarted costs no message."""
    while True:
        try:
            connection = idle.pop()
        except IndexError:
            return None
        connection.setblocking(False)
        try:
            connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return connection
        except OSError:
            pass
        connection.close()


def _exchange(connection: socket.socket, header: bytes, payload: memoryview, deadline: float) -> None:
    joined = len(payload) <= _JOINED_BYTES_MAX
    for part in (header + payload,) if joined else (header, payload):
        connection.settimeout(_left(deadline))
        connection.sendall(part)
    answer = b""
    while len(answer) < len(ANSWER_FRAME):
        connection.settimeout(_left(deadline))
        part = connection.recv(len(ANSWER_FRAME) - len(answer))
        if not part:
            raise ConnectionResetError("closed by the receiver")
        answer += part
    if answer != ANSWER_FRAME:
        raise ConnectionError("the answer is not one of this protocol")
