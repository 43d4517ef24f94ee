# SPDX-License-Identifier: Apache-2.0
"""An inference engine that computes nothing: mock_engine.py prefill|decode [PORT]. Prints its port.

A prefill instance proves which prompt it has seen, and a decode instance answers only with such a proof; what it generates follows from the prompt.
"""

import asyncio
import hashlib
import json
import random
import sys

from aiohttp import web

TOKENS = 6


def proof_of(prompt: list[int]) -> str:
    return hashlib.blake2b(json.dumps(prompt).encode(), digest_size=8).hexdigest()


def answer_to(prompt: list[int]) -> list[int]:
    return list(hashlib.blake2b(b"answer" + json.dumps(prompt).encode(), digest_size=TOKENS).digest())


async def prefill(request: web.Request) -> web.Response:
    body = await request.json()
    assert body["max_tokens"] == 1 and body["kv_transfer_params"]["do_remote_decode"]
    await asyncio.sleep(random.uniform(0, 0.02))
    return web.json_response({"choices": [{"token_ids": [0]}], "kv_transfer_params": {"proof": proof_of(body["prompt"]), "remote_host": "h"}})


async def decode(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    prompt = body["prompt"]
    if body["kv_transfer_params"]["proof"] != proof_of(prompt):
        return web.json_response({"error": {"message": "another prompt's cache", "code": 400}}, status=400)
    if not body.get("stream"):
        await asyncio.sleep(random.uniform(0, 0.02))
        return web.json_response({"choices": [{"token_ids": answer_to(prompt)}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        for token in answer_to(prompt):
            await asyncio.sleep(random.uniform(0, 0.02))
            await response.write(f"data: {json.dumps({'choices': [{'token_ids': [token]}]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
    except ConnectionError:
        pass  # the proxy is tired of us
    return response


async def health(_: web.Request) -> web.Response:
    return web.json_response({})


async def main() -> None:
    app = web.Application()
    app.add_routes([web.get("/health", health), web.post("/v1/completions", prefill if sys.argv[1] == "prefill" else decode)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
