# SPDX-License-Identifier: Apache-2.0
"""The prefill side of a hand-over: one rank tells readers which layers of a request are computed, and keeps the blocks until they were read.

Readers are the ranks of the decode side. They read by themselves, one-sidedly, and say when they have done so; the answer to that tells them whether the blocks
were still held, that is, whether what they read is what was computed. So a reader that was too slow learns of it instead of using blocks of somebody else.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import threading
from dataclasses import dataclass, field
from typing import Any

from .. import kvplan
from .control import HELLO_TIMEOUT_S, LoopThread, Refused, check_hello, frame, hello, receive, send

UNSENT_BYTES_MAX = 64 << 20  # a reader that does not listen is given up
TRANSFERS_MAX = 100_000
OVER_MAX = 10_000


@dataclass(eq=False)
class _Link:
    writer: asyncio.StreamWriter
    attached: set[tuple[str, int]] = field(default_factory=set)  # transfer, reader

    def tell(self, message: dict[str, Any]) -> None:
        if self.writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.writer.transport.abort()
        elif not self.writer.is_closing():
            self.writer.write(frame(message))


@dataclass(eq=False)
class _Transfer:
    """One request, as far as this rank knows it."""

    generation: int = 0
    tables: list[list[int]] | None = None  # None: a reader asked, but we have not heard of it
    ready: dict[str, int] = field(default_factory=dict)  # layer -> tokens
    readers: dict[int, _Link] = field(default_factory=dict)  # those that have neither finished nor gone
    seen: set[int] = field(default_factory=set)
    expected: int = 0  # readers; 0: nobody has said yet
    held: bool = False  # computed: it ends when it was read
    timer: asyncio.TimerHandle | None = None

    def news(self, name: str, layers: dict[str, int]) -> dict[str, Any]:
        return {"ready": name, "generation": self.generation, "tables": self.tables, "layers": layers}


class Source:
    """Calls may come from any thread, but those about one transfer from one thread; they return at once.

    attach_timeout: seconds that computed blocks are kept for readers that have not come at all.
    handover_timeout: seconds they are kept for readers that have come.
    """

    def __init__(self, thread: LoopThread, rank: kvplan.Rank, *, host: str, attach_timeout: float = 60.0, handover_timeout: float = 300.0) -> None:
        self._thread, self._rank = thread, kvplan.describe(rank)
        self._attach_timeout, self._handover_timeout = attach_timeout, handover_timeout
        self._layers = list(dict.fromkeys(region.layer for region in rank.regions))
        self._transfers: dict[str, _Transfer] = {}
        self._over: collections.OrderedDict[str, str] = collections.OrderedDict()  # the latest that ended, and why, for readers that come too late
        self._lock = threading.Lock()
        self._finished: dict[str, str] = {}  # guarded by the lock
        self._order: concurrent.futures.ThreadPoolExecutor | None = None
        self._server = thread.start(asyncio.start_server(self._serve, host, 0)).result()
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # ---- what the engine's worker says

    def ready(self, transfer: str, tables: list[list[int]], tokens: int, *, layers: list[str] | None = None, event: Any = None) -> None:
        """The first `tokens` tokens of these layers (None: all of this rank) lie in the blocks; with an event: once synchronize() has returned."""
        names = self._layers if layers is None else layers
        if event is not None and self._order is None:
            self._order = concurrent.futures.ThreadPoolExecutor(1, "mc-kv-events")
        if self._order is None:
            return self._thread.call(self._ready, transfer, tables, dict.fromkeys(names, tokens))

        def after_event() -> None:
            if event is not None:
                event.synchronize()
            self._thread.call(self._ready, transfer, tables, dict.fromkeys(names, tokens))

        self._order.submit(after_event)

    def restart(self, transfer: str) -> None:
        """Its blocks were given away, and it is computed again: readers forget what they have read. To be called before the blocks are used for anything else."""
        self._ordered(self._restart, transfer)

    def hold(self, transfer: str) -> None:
        """All of it is computed. From here on take_finished() may name it."""
        self._ordered(self._hold, transfer)

    def drop(self, transfer: str, reason: str) -> None:
        """It will not be computed, or must not be read any more. Readers are told; take_finished() does not name it."""
        self._ordered(self._drop, transfer, reason)

    def take_finished(self) -> dict[str, str]:
        """Transfers whose blocks are free again, and why: "" where all readers have read them."""
        with self._lock:
            finished, self._finished = self._finished, {}
        return finished

    def close(self) -> None:
        if self._order is not None:
            self._order.shutdown()
        self._thread.start(self._close()).result()

    # ---- in the thread of the loop

    def _ordered(self, work: Any, *arguments: Any) -> None:
        if self._order is None:
            self._thread.call(work, *arguments)
        else:
            self._order.submit(self._thread.call, work, *arguments)

    def _of(self, name: str) -> _Transfer:
        return self._transfers.setdefault(name, _Transfer())

    def _ready(self, name: str, tables: list[list[int]], layers: dict[str, int]) -> None:
        self._over.pop(name, None)
        transfer = self._of(name)
        transfer.tables = tables
        transfer.ready.update(layers)
        for link in transfer.readers.values():
            link.tell(transfer.news(name, layers))

    def _restart(self, name: str) -> None:
        transfer = self._of(name)
        transfer.generation += 1
        transfer.ready.clear()
        for link in transfer.readers.values():
            link.tell(transfer.news(name, {}))

    def _hold(self, name: str) -> None:
        transfer = self._of(name)
        transfer.held = True
        self._set_timer(name, transfer)
        self._end_if_read(name, transfer)

    def _set_timer(self, name: str, transfer: _Transfer) -> None:
        if not transfer.held:
            return
        if transfer.timer is not None:
            transfer.timer.cancel()
        patience = self._handover_timeout if transfer.seen else self._attach_timeout
        missing = "its readers did not finish" if transfer.seen else "no reader came"
        transfer.timer = asyncio.get_running_loop().call_later(patience, self._end, name, f"{missing} within {patience:g} s")

    def _end_if_read(self, name: str, transfer: _Transfer) -> None:
        if transfer.held and transfer.expected and len(transfer.seen) >= transfer.expected and not transfer.readers:
            self._end(name, "")

    def _end(self, name: str, reason: str) -> None:
        transfer = self._transfers.pop(name, None)
        if transfer is None:
            return
        self._detach(name, transfer, reason)
        with self._lock:
            self._finished[name] = reason

    def _drop(self, name: str, reason: str) -> None:
        self._detach(name, self._transfers.pop(name, _Transfer()), reason)

    def _detach(self, name: str, transfer: _Transfer, reason: str) -> None:
        self._over[name] = reason or "it was read already"
        while len(self._over) > OVER_MAX:
            self._over.popitem(last=False)
        if transfer.timer is not None:
            transfer.timer.cancel()
        for reader, link in transfer.readers.items():
            link.attached.discard((name, reader))
            link.tell({"failed": name, "reason": reason})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        try:
            try:
                check_hello(await asyncio.wait_for(receive(reader), HELLO_TIMEOUT_S), "the reader")
            except Refused as problem:
                await send(writer, {"refused": str(problem)})
                return
            await send(writer, hello(rank=self._rank))
            while True:
                self._hear(link, await receive(reader))
        except (ConnectionError, OSError, asyncio.TimeoutError, KeyError, TypeError, ValueError):
            pass  # whatever it wanted is forgotten with it
        finally:
            for name, number in list(link.attached):
                self._left(link, name, number)
            writer.close()

    def _hear(self, link: _Link, message: dict[str, Any]) -> None:
        if "attach" in message:
            self._attach(link, str(message["attach"]), int(message["reader"]), int(message["readers"]))
        elif "done" in message:
            name, number = str(message["done"]), int(message["reader"])
            transfer = self._transfers.get(name)
            good = transfer is not None and (name, number) in link.attached and transfer.generation == message["generation"]
            link.tell({"confirmed": name, "held": good})
            if good:
                self._left(link, name, number)
        elif "leave" in message:
            self._left(link, str(message["leave"]), int(message["reader"]))

    def _attach(self, link: _Link, name: str, number: int, readers: int) -> None:
        if readers < 1 or not 0 <= number < readers:
            raise ValueError("no such reader")
        if len(self._transfers) >= TRANSFERS_MAX and name not in self._transfers:
            link.tell({"failed": name, "reason": "too many transfers at the same time"})
            return
        if name not in self._transfers and name in self._over:
            link.tell({"failed": name, "reason": self._over[name]})
            return
        transfer = self._of(name)
        transfer.expected = readers
        transfer.readers[number] = link
        transfer.seen.add(number)
        link.attached.add((name, number))
        self._set_timer(name, transfer)
        if transfer.tables is not None:
            link.tell(transfer.news(name, transfer.ready))

    def _left(self, link: _Link, name: str, number: int) -> None:
        link.attached.discard((name, number))
        transfer = self._transfers.get(name)
        if transfer is None or transfer.readers.get(number) is not link:
            return
        del transfer.readers[number]
        if transfer.tables is None and not transfer.readers:
            del self._transfers[name]  # we never heard of it, and nobody waits any more
            return
        self._end_if_read(name, transfer)

    async def _close(self) -> None:
        self._server.close()
        for name in list(self._transfers):
            self._drop(name, "the prefill rank ends")
        await asyncio.sleep(0)
