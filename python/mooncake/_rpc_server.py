# SPDX-License-Identifier: Apache-2.0
"""The receiving side of the RPC helper.

One thread reads from all connections as bytes arrive, so that nobody who sends slowly, half or nonsense delays another. Whole messages go
to a fixed number of workers; a connection is read again when its message was answered, which bounds what waits to one per connection.
A thread, descriptor or memory that cannot be had costs the connection that wanted it, never the server.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import selectors
import socket
import threading
import time
import weakref
from typing import Callable

from ._rpc_frames import ANSWER_FRAME, FrameReader, Message

CONNECTIONS_MAX = 1024
_SWEEP_S = 1.0
_PAUSE_S = 0.1  # after what should not have failed


class _Connection:
    def __init__(self, peer: socket.socket) -> None:
        self.socket, self.reader = peer, FrameReader()
        self.since = time.monotonic()  # the last sign of life
        host, port = peer.getpeername()[:2]
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.create_server(address, family=family, backlog=128)
    listener.setblocking(False)
    return listener


class Server:
    """Listens from construction to stop(), which any thread may call. `deliver` runs in the workers and must not raise."""

    def __init__(self, host: str, port: int, workers: int, timeout_s: float, deliver: Callable[[Message, str], None],
                 warn: Callable[[str], None]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # slow to import; who only sends has no need of it

        self.stopped = threading.Event()
        self._timeout_s, self._deliver, self._warn = timeout_s, deliver, warn
        self._own_threads: set[int] = set()
        self._workers = ThreadPoolExecutor(workers, "mooncake-rpc", lambda: self._own_threads.add(threading.get_ident()))
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        # All below is used by the reading thread only, but for the ends of these two.
        self._answered: collections.deque[tuple[_Connection, bool]] = collections.deque()
        self._stopping = False
        self._connections: set[_Connection] = set()
        self._hurried: set[_Connection] = set()  # those that owe the rest of a message, or the first one
        self._warned = self._swept = time.monotonic() - _SWEEP_S
        self._accepting = False
        self._thread = threading.Thread(target=self._run, name="mooncake-rpc", daemon=True)
        try:
            self._wake_in.setblocking(False)
            self._wake_out.setblocking(False)
            self._selector.register(self._wake_out, selectors.EVENT_READ, self._take_answered)
            self._accept_again()
            self._thread.start()
        except BaseException:
            self._close_all()
            raise
        servers.add(self)

    def stop(self) -> None:
        """Once it has returned nobody listens and no callback runs, but for the one that called it."""
        self._stopping = True
        self._wake()
        if threading.get_ident() not in self._own_threads:
            self.stopped.wait()

    def abandon(self) -> None:
        """In a forked child, where the thread is gone and what is open is the parent's."""
        self._close_all()
        self.stopped = threading.Event()
        self.stopped.set()

    # ---- the reading thread

    def _run(self) -> None:
        self._own_threads.add(threading.get_ident())
        try:
            while not self._stopping:
                try:
                    self._turn()
                except Exception as error:  # what it was about is dropped already, or comes again
                    with contextlib.suppress(Exception):  # no memory for that either
                        self._complain(f"goes on after {error!r}")
                    time.sleep(_PAUSE_S)
        finally:
            self._listener.close()
            self._workers.shutdown(cancel_futures=True)
            self._close_all()
            self.stopped.set()

    def _turn(self) -> None:
        waits = bool(self._hurried) or not self._accepting
        for key, _ in self._selector.select(_SWEEP_S if waits else None):
            key.data()
        self._sweep()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except (OSError, MemoryError) as error:  # out of descriptors, most likely: try again later
            self._complain(f"cannot accept connections: {error}")
            self._selector.unregister(self._listener)
            self._accepting = False
            return
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(peer)
        except (OSError, MemoryError):  # gone already, or no room for it
            peer.close()
            return
        if len(self._connections) >= CONNECTIONS_MAX and not self._drop_the_oldest():
            peer.close()
            return
        self._connections.add(connection)
        self._hurried.add(connection)
        self._watch(connection)

    def _accept_again(self) -> None:
        if not self._accepting:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._accepting = True

    def _watch(self, connection: _Connection) -> None:
        try:
            self._selector.register(connection.socket, selectors.EVENT_READ, functools.partial(self._read, connection))
        except (OSError, MemoryError) as error:
            self._drop(connection, error)

    def _read(self, connection: _Connection) -> None:
        if connection not in self._connections:  # dropped since select() named it
            return
        try:
            count = connection.socket.recv_into(connection.reader.space())
            if count == 0:
                return self._drop(connection)
            connection.since = time.monotonic()
            self._hurried.add(connection)
            message = connection.reader.advance(count)
            if message is None:
                return
            self._selector.unregister(connection.socket)
            self._hurried.discard(connection)
            self._workers.submit(self._serve, connection, message)
        except BlockingIOError:
            pass
        except (OSError, ValueError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread, or the interpreter is exiting
            self._drop(connection, error)

    def _take_answered(self) -> None:
        self._wake_out.recv(4096)
        while self._answered:
            connection, good = self._answered.popleft()
            if good and connection in self._connections:
                connection.since = time.monotonic()
                self._watch(connection)
            else:
                self._drop(connection)

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept < _SWEEP_S:
            return
        self._swept = now
        for connection in [late for late in self._hurried if now - late.since > self._timeout_s]:
            self._drop(connection, f"it sent nothing for {self._timeout_s:g} s in the midst of a message")
        self._accept_again()

    def _drop_the_oldest(self) -> bool:
        """False if all have messages that are being dealt with."""
        watched = {key.fileobj for key in self._selector.get_map().values()}
        idle = [connection for connection in self._connections if connection.socket in watched]
        if idle:
            self._drop(min(idle, key=lambda connection: connection.since))
        return bool(idle)

    def _drop(self, connection: _Connection, why: object = None) -> None:
        """Nothing if that was done before."""
        if connection not in self._connections:
            return
        try:
            self._selector.unregister(connection.socket)
        except KeyError:  # its message is being answered
            pass
        self._connections.discard(connection)
        self._hurried.discard(connection)
        connection.socket.close()
        if why is not None:
            self._complain(f"the connection from {connection.name} is closed: {why}")

    def _complain(self, text: str) -> None:
        """Seldom: strangers may cause it as often as they like."""
        if time.monotonic() - self._warned >= _SWEEP_S:
            self._warned = time.monotonic()
            self._warn(f"rpc server on port {self.port}: {text}")

    def _close_all(self) -> None:
        self._selector.close()
        for open_socket in (self._listener, self._wake_in, self._wake_out, *(connection.socket for connection in self._connections)):
            open_socket.close()

    # ---- the workers

    def _serve(self, connection: _Connection, message: Message) -> None:
        if connection not in self._connections:  # a thread was missing, and its sender has been told; submit() queues it all the same
            return
        self._deliver(message, connection.name)
        try:
            good = connection.socket.send(ANSWER_FRAME) == len(ANSWER_FRAME)
        except OSError:
            good = False
        self._answered.append((connection, good))
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except OSError:  # it is awake already, or has ended
            pass


servers: weakref.WeakSet[Server] = weakref.WeakSet()
