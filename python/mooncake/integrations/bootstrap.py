# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a prefill instance are: a small HTTP server of its first rank. Ranks POST /register, decode ranks and proxies GET /query.

/query answers {"DP_RANK": {"engine_id": text, "ranks": [control addresses], "world": how many there will be}}.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp import web

from .. import __version__
from .control import LoopThread
from .target import LoadFailed

REGISTER_PATIENCE_S = 60.0  # the first rank may start last
QUERY_TIMEOUT_S = 5.0
STARTING_PAUSE_S = 0.02
_RANKS_MAX = 4096


class Bootstrap:
    """The server. Everything it knows is what was registered."""

    def __init__(self, thread: LoopThread, host: str, port: int) -> None:
        self._thread = thread
        self._engines: dict[int, dict[str, Any]] = {}
        self.port = thread.start(self._start(host, port)).result()

    async def _start(self, host: str, port: int) -> int:
        app = web.Application(client_max_size=1 << 20)
        app.add_routes([web.post("/register", self._register), web.get("/query", self._query), web.get("/health", _ok)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _register(self, request: web.Request) -> web.Response:
        try:
            said = await request.json()
            engine, address = str(said["engine_id"]), str(said["address"])
            dp_rank, number, world = (int(said[name]) for name in ("dp_rank", "number", "world"))
            if not 0 <= number < world <= _RANKS_MAX or not 0 <= dp_rank < _RANKS_MAX:
                raise ValueError("no such rank")
        except (ValueError, KeyError, TypeError) as problem:
            return web.json_response({"error": f"bad registration: {problem}"}, status=400)
        known = self._engines.get(dp_rank)
        if known is None or known["engine_id"] != engine or known["world"] != world:
            known = self._engines[dp_rank] = {"engine_id": engine, "world": world, "by_number": {}}
        known["by_number"][number] = address
        return web.json_response({})

    async def _query(self, _: web.Request) -> web.Response:
        return web.json_response({
            str(dp_rank): {
                "engine_id": engine["engine_id"], "world": engine["world"], "version": __version__,
                "ranks": [address for _, address in sorted(engine["by_number"].items())],
            }
            for dp_rank, engine in self._engines.items()
        })

    def close(self) -> None:
        self._thread.start(self._runner.cleanup()).result()


async def _ok(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def register(url: str, *, engine_id: str, dp_rank: int, number: int, world: int, address: str) -> None:
    """RuntimeError: nobody was there for long."""
    entry = {"engine_id": engine_id, "dp_rank": dp_rank, "number": number, "world": world, "address": address}
    loop = asyncio.get_running_loop()
    end, problem = loop.time() + REGISTER_PATIENCE_S, ""
    while loop.time() < end:
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=QUERY_TIMEOUT_S)) as session:
                async with session.post(f"{url}/register", json=entry) as answer:
                    if answer.status == 200:
                        return
                    problem = await answer.text()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            problem = str(error) or type(error).__name__
        await asyncio.sleep(0.1)
    raise RuntimeError(f"rank {number} could not register at {url}: {problem}")


class Directory:
    """Finds the ranks of prefill instances; remembers them by engine id, which is one life of an instance."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Sequence[str]] = {}

    async def find(self, url: str, engine_id: str) -> Sequence[str]:
        """Waits a while for ranks that are still starting. LoadFailed: nobody there, or not that engine."""
        known = self._known.get((url, engine_id))
        if known is not None:
            return known
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=QUERY_TIMEOUT_S)) as session:
                end = asyncio.get_running_loop().time() + QUERY_TIMEOUT_S
                while True:
                    ranks, world = await self._ask(session, url, engine_id)
                    if len(ranks) == world:
                        break
                    if asyncio.get_running_loop().time() >= end:
                        raise LoadFailed(f"{url}: {len(ranks)} of {world} ranks of {engine_id} are there")
                    await asyncio.sleep(STARTING_PAUSE_S)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise LoadFailed(f"{url} did not say where its ranks are: {str(problem) or type(problem).__name__}") from problem
        self._known[(url, engine_id)] = ranks
        return ranks

    @staticmethod
    async def _ask(session: aiohttp.ClientSession, url: str, engine_id: str) -> tuple[list[str], int]:
        """The ranks that are there, and how many there will be."""
        async with session.get(f"{url}/query") as answer:
            said = await answer.json()
        engines = {str(entry["engine_id"]): entry for entry in said.values()}
        entry = engines.get(engine_id)
        if entry is None:
            raise LoadFailed(f"{url} has no engine {engine_id} but {', '.join(sorted(engines)) or 'none'}: it has restarted")
        return [str(address) for address in entry["ranks"]], int(entry["world"])
