# SPDX-License-Identifier: Apache-2.0
"""One instance of the demonstration as a process: an engine behind /v1/completions, /v1/models, /health and /state. Prints where it is as one line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import uuid
from typing import Any

from aiohttp import web

from .. import kvplan
from ..integrations.handover import Settings
from ..integrations.prefix_store import PrefixStore, RankStore, namespace, side_of
from ..store import MooncakeDistributedStore
from .engine import Engine, Request
from .model import SHAPE

MODEL = "tiny"


def tokens_of(prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(prompt.encode())
    if isinstance(prompt, list) and all(isinstance(token, int) and 0 <= token < SHAPE.vocabulary for token in prompt):
        return prompt
    raise ValueError("a prompt is a text, or a list of token numbers")


class Server:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def app(self) -> web.Application:
        app = web.Application(client_max_size=16 << 20)
        app.add_routes([
            web.post("/v1/completions", self._complete), web.get("/health", self._health), web.get("/state", self._state),
            web.get("/v1/models", self._models),
        ])
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(self._engine.state())

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        try:
            body = await http.json()
            prompt, count = tokens_of(body["prompt"]), int(body.get("max_tokens", 16))
            if not prompt or count < 1 or len(prompt) + count > SHAPE.positions:
                raise ValueError("a prompt has at least one token, and the model has its limits")
        except (ValueError, KeyError, TypeError) as problem:
            return web.json_response({"error": {"message": str(problem), "code": 400}}, status=400)
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()
        request = Request(
            f"{http.headers.get('X-Request-Id', 'cmpl')}-{uuid.uuid4().hex[:8]}", prompt, count,
            lambda what, value: loop.call_soon_threadsafe(heard.put_nowait, (what, value)), body.get("kv_transfer_params"))
        self._engine.add(request)
        try:
            return await (self._stream(http, request, heard) if body.get("stream") else self._whole(request, heard))
        except (asyncio.CancelledError, ConnectionError):
            self._engine.abort(request.request_id)  # whoever asked is gone
            raise

    async def _whole(self, request: Request, heard: asyncio.Queue[tuple[str, Any]]) -> web.Response:
        while True:
            what, value = await heard.get()
            if what == "error":
                return web.json_response({"error": {"message": value, "code": 500}}, status=500)
            if what == "end":
                answer = self._answer(request, request.made)
                answer["usage"] = {
                    "prompt_tokens": request.num_prompt_tokens, "completion_tokens": len(request.made),
                    "prompt_tokens_details": {"cached_tokens": request.cached},
                }
                if value:
                    answer["kv_transfer_params"] = value
                return web.json_response(answer)

    async def _stream(self, http: web.Request, request: Request, heard: asyncio.Queue[tuple[str, Any]]) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        while True:
            what, value = await heard.get()
            if what == "error" and response is None:
                return web.json_response({"error": {"message": value, "code": 500}}, status=500)
            if response is None:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(http)
            if what == "token":
                await response.write(f"data: {json.dumps(self._answer(request, [value]))}\n\n".encode())
                continue
            if what == "error":
                await response.write(f"data: {json.dumps({'error': {'message': value, 'code': 500}})}\n\n".encode())
            await response.write(b"data: [DONE]\n\n")
            return response

    @staticmethod
    def _answer(request: Request, tokens: list[int]) -> dict[str, Any]:
        text = bytes(tokens).decode("latin-1")
        return {"id": request.request_id, "object": "text_completion", "model": MODEL, "choices": [{"index": 0, "text": text, "token_ids": tokens}]}


def open_store(master: str, engine: Any = None) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master, engine)
    if code != 0:
        raise RuntimeError(f"no store at {master}: {code}")
    return store


def attach_store(engine: Engine, master: str, grid_tokens: int = 32) -> None:
    """All instances cut blocks alike, whatever their own parallelism and block size."""
    regions = [region for region in engine.caches[0].regions()]
    grid = kvplan.shard_grid([(regions, kvplan.head_cuts_for(SHAPE.heads, [1, 2, 4]))], grid_tokens)
    name = namespace(MODEL, regions, weights=1)
    ranks = [
        RankStore(open_store(master, worker.engine.get_engine()), grid, name, side_of(worker.rank, engine.settings.tp_size, SHAPE.heads), number)
        for number, worker in enumerate(engine.workers)
    ]
    engine.use_store(PrefixStore(open_store(master), grid, name), ranks)


async def serve(arguments: argparse.Namespace) -> None:
    settings = Settings(
        engine_id=uuid.uuid4().hex, bootstrap_port=0, protocol="tcp", produces=arguments.role != "decode", consumes=arguments.role != "prefill",
        tp_size=arguments.tp, layerwise=not arguments.whole)
    engine = Engine(
        settings, block_tokens=arguments.block_tokens, blocks=arguments.blocks, chunk_tokens=arguments.chunk_tokens,
        layer_seconds=arguments.layer_seconds)
    if arguments.master and arguments.role != "decode":
        attach_store(engine, arguments.master)
    engine.start()
    runner = web.AppRunner(Server(engine).app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
    print(json.dumps({"port": runner.addresses[0][1], "bootstrap_port": engine.settings.bootstrap_port, "pid": os.getpid()}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mooncake.serving_demo.instance", description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=("prefill", "decode", "both"), default="both")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=512)
    parser.add_argument("--chunk-tokens", type=int, default=32, help="tokens that are computed in one step (%(default)s)")
    parser.add_argument("--layer-seconds", type=float, default=0.0, help="that each layer takes on top, as larger models would (%(default)s)")
    parser.add_argument("--whole", action="store_true", help="hand over when a step is computed, not each layer")
    parser.add_argument("--master", default="", help="host:port of a store's master, for prefixes")
    try:
        asyncio.run(serve(parser.parse_args()))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
