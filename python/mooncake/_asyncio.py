# SPDX-License-Identifier: Apache-2.0
"""Transfers that an event loop can wait for.

The engine's threads drop a token into a queue behind an eventfd; the loop watches that descriptor like any socket. No thread is
needed per call, nor to cancel one, and the engine never waits for the interpreter.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any, Callable, Sequence

from .engine import TransferEngine, TransferOpcode, _CompletionPort

_ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Port] = weakref.WeakKeyDictionary()


class _Port:
    """Hears of finished batches on behalf of one event loop; used in that loop's thread only. The loop keeps it alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._native = _CompletionPort()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tokens = itertools.count()
        loop.add_reader(self._native.fileno(), self._wake)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Port:
        port = _ports.get(loop)
        if port is None:
            port = _ports[loop] = cls(loop)
        return port

    def done(self, engine: TransferEngine, batch: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that is done when the batch is over."""
        return self.heard(loop, lambda port, token: None if engine._watch(port, batch, token) else port.put(token))

    def heard(self, loop: asyncio.AbstractEventLoop, watch: Callable[[_CompletionPort, int], object]) -> asyncio.Future[None]:
        """A future that is done when whoever is told to `watch` has put the token into the port."""
        future = loop.create_future()
        token = next(self._tokens)
        self._waiting[token] = future
        watch(self._native, token)
        return future

    def _wake(self) -> None:
        for token in self._native.take():
            future = self._waiting.pop(token)
            if not future.done():
                future.set_result(None)


async def _outlive(future: asyncio.Future[Any]) -> None:
    """Waits for the future even if the task is cancelled again."""
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            pass
        except Exception:
            break


async def transfer(
    engine: TransferEngine,
    target_hostname: str,
    buffers: Sequence[Any],
    peer_buffer_addresses: Sequence[int],
    lengths: Sequence[int] | None,
    opcode: TransferOpcode | int,
    after: Any = None,
) -> int:
    loop = asyncio.get_running_loop()
    port = _Port.of(loop)  # first: once bytes move nothing may be missing that it takes to hear of their end
    # In this thread, though it may be long before the peer is reached: the addresses are those of whoever awaits, who is also told when the peer
    # has restarted. The engine's threads connect meanwhile.
    batch = engine._submit(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, after)
    if batch == 0:
        return -1
    try:
        over = port.done(engine, batch, loop)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            # Not by a thread of the loop's executor: that may have none to spare, or be shut down.
            engine._begin_cancel(batch)
            await _outlive(over)
            raise
    except BaseException:
        # The caller may reuse the memory as soon as this arrives, so the transfer must have stopped by then. It has, unless nobody could wait for
        # that: the loop is gone (GeneratorExit), or there is no memory.
        engine.cancel(batch)
        engine._discard(batch)
        raise
    return engine.get_batch_transfer_status([batch])
