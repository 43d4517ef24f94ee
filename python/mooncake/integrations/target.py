# SPDX-License-Identifier: Apache-2.0
"""The decode side of a hand-over: one rank reads its share of a request from the ranks of a prefill instance, layer by layer as they are computed.

The side whose memory is written moves the bytes, so it alone decides when nothing moves any more: once a load is reported as over, successful or not, its blocks
may be used for anything.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import kvplan
from ..engine import TransferEngine
from .control import HELLO_TIMEOUT_S, LoopThread, Refused, check_hello, hello, receive, send


class LoadFailed(RuntimeError):
    """With the reason, for people."""


@dataclass(frozen=True)
class Load:
    """What one rank is to read of one request.

    find: gives the addresses of all ranks of the prefill instance (Source.address).
    first_token, tokens: of the request; what lies before is here already.
    tables: the blocks for it here, by group, from the request's first token on.
    reader, readers: the number of this rank among those that read this request.
    """

    request: str
    transfer: str
    find: Callable[[], Awaitable[Sequence[str]]]
    first_token: int
    tokens: int
    tables: Sequence[Sequence[int]]
    reader: int = 0
    readers: int = 1
    timeout: float = 300.0


@dataclass(frozen=True)
class Loaded:
    request: str
    error: str  # "": all of it is here
    bytes: int = 0
    seconds: float = 0.0
    steps: int = 0  # into how many steps it was cut, layers times chunks


class _Link:
    """The connection to one prefill rank, for all loads."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: kvplan.Rank) -> None:
        self.address, self.rank = address, rank
        self._reader, self._writer = reader, writer
        self._heard: dict[str, asyncio.Queue[tuple[_Link, dict[str, Any]]]] = {}
        self.broken = False
        self._task = asyncio.ensure_future(self._listen())

    @classmethod
    async def open(cls, address: str) -> _Link:
        host, _, port = address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            await send(writer, hello())
            said = await receive(reader)
            check_hello(said, address)
            return cls(address, reader, writer, kvplan.rank_from(said["rank"]))
        except Refused as problem:
            raise LoadFailed(str(problem)) from problem
        except (OSError, KeyError, ValueError, TypeError) as problem:
            raise LoadFailed(f"prefill rank {address}: {problem}") from problem

    def attach(self, transfer: str, news: asyncio.Queue[tuple[_Link, dict[str, Any]]]) -> None:
        self._heard[transfer] = news
        if self.broken:
            news.put_nowait((self, {"failed": transfer, "reason": "the connection is broken"}))

    def detach(self, transfer: str) -> None:
        self._heard.pop(transfer, None)

    async def tell(self, message: dict[str, Any]) -> None:
        try:
            await send(self._writer, message)
        except (ConnectionError, OSError) as problem:
            raise LoadFailed(f"prefill rank {self.address}: {problem}") from problem

    async def _listen(self) -> None:
        reason = "the connection ended"
        try:
            while True:
                message = await receive(self._reader)
                name = message.get("ready", message.get("failed", message.get("confirmed")))
                if name in self._heard:
                    self._heard[name].put_nowait((self, message))
        except (ConnectionError, OSError) as problem:
            reason = str(problem)
        finally:
            self.broken = True
            self._writer.close()
            for transfer, news in self._heard.items():
                news.put_nowait((self, {"failed": transfer, "reason": reason}))

    def close(self) -> None:
        self._task.cancel()


@dataclass
class _Progress:
    """What the prefill ranks have said about one request, and what was read of it."""

    links: Sequence[_Link]
    generation: list[int] = field(init=False)
    tables: list[list[list[int]]] = field(init=False)
    ready: list[dict[str, int]] = field(init=False)
    layers: dict[str, list[int]] = field(init=False)  # which links have it

    def __post_init__(self) -> None:
        self.generation = [0] * len(self.links)
        self.tables = [[] for _ in self.links]
        self.ready = [{} for _ in self.links]
        self.layers = {}
        for number, link in enumerate(self.links):
            for name in {region.layer for region in link.rank.regions}:
                self.layers.setdefault(name, []).append(number)

    def hear(self, number: int, message: dict[str, Any]) -> bool:
        """False: the prefill begins anew."""
        anew = message["generation"] != self.generation[number]
        if anew:
            self.generation[number] = message["generation"]
            self.ready[number].clear()
        if message["tables"] is not None:
            self.tables[number] = message["tables"]
        self.ready[number].update(message["layers"])
        return not anew

    def tokens_of(self, layer: str) -> int:
        """How many all ranks have that hold some of it; 0 while they are at different attempts."""
        if len(set(self.generation)) > 1:
            return 0
        return min((self.ready[number].get(layer, 0) for number in self.layers.get(layer, ())), default=0)


class _Reading:
    """One load that is under way."""

    def __init__(self, load: Load, engine: TransferEngine, rank: kvplan.Rank, links: Sequence[_Link]) -> None:
        self.load, self._engine, self._rank, self._links = load, engine, rank, links
        self._seed = (zlib.crc32(load.transfer.encode()) + load.reader) & 0xFFFFFFFF
        self._needed = self._ranks_needed()
        self._progress = _Progress([links[number] for number in self._needed])
        self._layers = list(dict.fromkeys(region.layer for region in rank.regions))
        self._taken = dict.fromkeys(self._layers, load.first_token)
        self._flows: dict[tuple[Any, ...], kvplan.Flow] = {}
        self._steps: list[asyncio.Task[int]] = []
        self.bytes = self.steps = 0

    def _ranks_needed(self) -> list[int]:
        """Who has anything for us: it does not depend on tokens and blocks, so one token says it."""
        sources = [link.rank for link in self._links]
        if self._rank.stripes != 1 or any(source.stripes != 1 for source in sources):
            raise LoadFailed("context parallelism is not supported by this connector")
        groups = 1 + max(region.group for rank in (*sources, self._rank) for region in rank.regions)
        first = [[0]] * groups
        try:
            plan = kvplan.make_plan(sources, [self._rank], tokens=1, source_blocks=[first] * len(sources), target_blocks=[first], seed=self._seed)
        except ValueError as problem:
            raise LoadFailed(f"the two sides do not fit together: {problem}") from problem
        return sorted({pair.source for pair in plan.pairs})

    async def run(self) -> None:
        news: asyncio.Queue[tuple[_Link, dict[str, Any]]] = asyncio.Queue()
        load = self.load
        for link in self._links:
            link.attach(load.transfer, news)
        left = True
        try:
            for link in self._links:
                await link.tell({"attach": load.transfer, "reader": load.reader, "readers": load.readers})
            await self._read_all(news)
            left = False
        finally:
            await self._stop()
            for link in self._links:
                link.detach(load.transfer)
                if left and not link.broken:
                    try:
                        await link.tell({"leave": load.transfer, "reader": load.reader})
                    except LoadFailed:
                        pass

    async def _read_all(self, news: asyncio.Queue[tuple[_Link, dict[str, Any]]]) -> None:
        number_of = {id(link): number for number, link in enumerate(self._progress.links)}
        end = self.load.first_token + self.load.tokens
        while True:
            while min(self._taken.values(), default=end) < end:
                link, message = await self._next(news)
                if id(link) in number_of and not self._progress.hear(number_of[id(link)], message):
                    await self._stop()
                    self._taken = dict.fromkeys(self._layers, self.load.first_token)
                await self._start(end)
            moved = await asyncio.gather(*self._steps)
            if await self._confirmed(news, number_of):
                self.bytes = sum(moved)
                return
            await self._stop()
            self._taken = dict.fromkeys(self._layers, self.load.first_token)

    async def _next(self, news: asyncio.Queue[tuple[_Link, dict[str, Any]]]) -> tuple[_Link, dict[str, Any]]:
        """A step that fails must not wait for the next message to be seen."""
        waiting = asyncio.ensure_future(news.get())
        try:
            while not waiting.done():
                await asyncio.wait({waiting, *(step for step in self._steps if not step.done())}, return_when=asyncio.FIRST_COMPLETED)
                for step in self._steps:
                    if step.done():
                        step.result()
        except BaseException:
            waiting.cancel()
            raise
        link, message = waiting.result()
        if "failed" in message:
            raise LoadFailed(f"prefill rank {link.address}: {message['reason'] or 'it is over'}")
        return link, message

    async def _start(self, end: int) -> None:
        """Starts whatever is there and was not read yet."""
        for layer in self._layers:
            until = min(self._progress.tokens_of(layer), end)
            since = self._taken[layer]
            if until <= since:
                continue
            flow = await self._flow(since, until, tuple(self._progress.layers[layer]))
            self._taken[layer] = until
            self.steps += 1
            self._steps.append(asyncio.ensure_future(flow.submit(layer)._await()))

    async def _flow(self, since: int, until: int, sources: tuple[int, ...]) -> kvplan.Flow:
        """Layers of the same ranks (a stage of a pipeline) that have come equally far share one plan. What other stages have is not known yet."""
        flow = self._flows.get((since, until, sources))
        if flow is None:
            progress = self._progress
            layers = {layer for layer, holders in progress.layers.items() if tuple(holders) == sources}
            ours = kvplan.Rank(self._rank.segment, [region for region in self._rank.regions if region.layer in layers])
            tables = [list(table) for table in self.load.tables]
            try:
                plan = kvplan.make_plan(
                    [progress.links[number].rank for number in sources], [ours], tokens=until - since, first_token=since,
                    source_blocks=[progress.tables[number] for number in sources], target_blocks=[tables], seed=self._seed,
                )
            except ValueError as problem:
                raise LoadFailed(f"the two sides do not fit together: {problem}") from problem
            loop = asyncio.get_running_loop()
            flow = await loop.run_in_executor(None, lambda: kvplan.Flow(self._engine, plan, target=0, timeout=min(self.load.timeout, 30.0)))
            self._flows[(since, until, sources)] = flow
        return flow

    async def _confirmed(self, news: asyncio.Queue[tuple[_Link, dict[str, Any]]], number_of: dict[int, int]) -> bool:
        """Whether all blocks were held until now. False: the prefill began anew meanwhile."""
        generation = self._progress.generation[0] if self._progress.generation else 0
        for link in self._links:
            await link.tell({"done": self.load.transfer, "reader": self.load.reader, "generation": generation})
        open_answers = {id(link) for link in self._links}
        while open_answers:
            link, message = await self._next(news)
            if "confirmed" in message:
                if not message["held"] and id(link) in number_of:
                    raise LoadFailed(f"prefill rank {link.address} did not hold the blocks any more")
                open_answers.discard(id(link))
            elif id(link) in number_of and not self._progress.hear(number_of[id(link)], message):
                return False
        return True

    async def _stop(self) -> None:
        """Afterwards nothing moves."""
        flows, self._flows = list(self._flows.values()), {}
        steps, self._steps = self._steps, []
        for flow in flows:
            flow.cancel()
        if steps:
            over = asyncio.gather(*steps, return_exceptions=True)
            while not over.done():
                try:
                    await asyncio.shield(over)
                except asyncio.CancelledError:
                    continue  # the caller may not go on before they are over
        for flow in flows:
            flow.close()


class Target:
    """Calls may come from any thread and return at once."""

    def __init__(self, thread: LoopThread, engine: TransferEngine, rank: kvplan.Rank) -> None:
        self._thread, self._engine, self._rank = thread, engine, rank
        self._links: dict[str, _Link] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._tasks: dict[str, asyncio.Task[Loaded]] = {}
        self._lock = threading.Lock()
        self._finished: list[Loaded] = []  # guarded by the lock

    def load(self, load: Load) -> None:
        self._thread.call(self._load, load)

    def cancel(self, request: str) -> None:
        """take_finished() names it all the same, when nothing of it moves any more."""
        self._thread.call(self._cancel, request)

    def take_finished(self) -> list[Loaded]:
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        self._thread.start(self._close()).result()

    # ---- in the thread of the loop

    def _load(self, load: Load) -> None:
        task = self._tasks[load.request] = asyncio.ensure_future(self._run(load))
        task.add_done_callback(lambda over: self._over(load.request, over))

    def _cancel(self, request: str) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    def _over(self, request: str, task: asyncio.Task[Loaded]) -> None:
        """Also of one that was cancelled before it began, of which its own code never hears."""
        self._tasks.pop(request, None)
        with self._lock:
            self._finished.append(Loaded(request, "cancelled") if task.cancelled() else task.result())

    async def _run(self, load: Load) -> Loaded:
        began = time.monotonic()
        try:
            reading = await asyncio.wait_for(self._read(load), load.timeout)
            return Loaded(load.request, "", reading.bytes, time.monotonic() - began, reading.steps)
        except asyncio.TimeoutError:
            return Loaded(load.request, f"not read within {load.timeout:g} s")
        except Exception as problem:  # whatever it is, the scheduler has to hear of it
            return Loaded(load.request, str(problem) or type(problem).__name__)

    async def _read(self, load: Load) -> _Reading:
        addresses = await load.find()
        links = await asyncio.gather(*(self._link(address) for address in addresses))
        reading = _Reading(load, self._engine, self._rank, links)
        await reading.run()
        return reading

    async def _link(self, address: str) -> _Link:
        async with self._opening.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or link.broken:
                try:
                    link = self._links[address] = await asyncio.wait_for(_Link.open(address), HELLO_TIMEOUT_S)
                except asyncio.TimeoutError as problem:
                    raise LoadFailed(f"prefill rank {address} does not answer") from problem
            return link

    async def _close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            link.close()
