# SPDX-License-Identifier: Apache-2.0
"""Transfers that an event loop can wait for.

The engine's threads drop a token into a queue behind an eventfd; the loop watches that descriptor like any socket. No thread is
needed per call, and the engine never waits for the interpreter.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any, Sequence

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
        future = loop.create_future()
        token = next(self._tokens)
        self._waiting[token] = future
        if not engine._watch(self._native, batch, token):  # closed meanwhile: it is over already
            del self._waiting[token]
            future.set_result(None)
        return future

    def _wake(self) -> None:
        for token in self._native.take():
            future = self._waiting.pop(token)
            if not future.done():
                future.set_result(None)


async def _outlive(future: asyncio.Future[Any]) -> bool:
    """Waits for the future even if the task is cancelled; says whether it was."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    return cancelled


def _submit(engine: TransferEngine, arguments: tuple[Any, ...]) -> tuple[int, str]:
    """In another thread, whose last_error() would be out of reach."""
    batch = engine.batch_transfer_async(*arguments)
    return batch, "" if batch else engine.last_error()


async def transfer(
    engine: TransferEngine,
    target_hostname: str,
    buffers: Sequence[Any],
    peer_buffer_addresses: Sequence[int],
    lengths: Sequence[int] | None,
    opcode: TransferOpcode | int,
) -> int:
    loop = asyncio.get_running_loop()
    arguments = (target_hostname, buffers, peer_buffer_addresses, lengths, opcode)
    cancelled = False
    if engine._is_connected(target_hostname):
        batch = engine.batch_transfer_async(*arguments)
    else:
        # Reaching a peer for the first time, or again, may block for seconds.
        try:
            started = loop.run_in_executor(None, _submit, engine, arguments)
        except RuntimeError:  # the interpreter is exiting, and starts no threads any more
            return -1
        cancelled = await _outlive(started)
        batch, error = started.result()
        if error:
            engine._set_last_error(error)
    if batch == 0:
        if cancelled:
            raise asyncio.CancelledError
        return -1
    return await _finish(engine, batch, loop, cancelled)


async def _finish(engine: TransferEngine, batch: int, loop: asyncio.AbstractEventLoop, cancelled: bool) -> int:
    over = _Port.of(loop).done(engine, batch, loop)
    try:
        if not cancelled:
            await asyncio.shield(over)
    except asyncio.CancelledError:
        cancelled = True
    except GeneratorExit:  # the loop is gone; nobody can be waited for any more
        engine.cancel(batch)
        engine.get_batch_transfer_status([batch])
        raise
    if cancelled:
        # The caller may reuse the memory as soon as CancelledError arrives, so the transfer must have stopped by then.
        await _outlive(loop.run_in_executor(None, engine.cancel, batch))
        await _outlive(over)
        engine.get_batch_transfer_status([batch])
        raise asyncio.CancelledError
    return engine.get_batch_transfer_status([batch])
