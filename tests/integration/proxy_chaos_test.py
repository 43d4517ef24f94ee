# SPDX-License-Identifier: Apache-2.0
"""`mooncake proxy` as a program in front of engines that are killed, stopped and restarted under load. A ledger says what became of each request.

By hand, for longer and with another order of events: PROXY_CHAOS_SECONDS=600 PROXY_CHAOS_SEED=7 pytest tests/integration/proxy_chaos_test.py
"""

import asyncio
import collections
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp

import mooncake
from mock_engine import answer_to

HERE = Path(__file__).resolve().parent
PROGRAM = Path(mooncake.__file__).parent / "bin" / "mooncake"
SECONDS = float(os.environ.get("PROXY_CHAOS_SECONDS", 10))
SEED = int(os.environ.get("PROXY_CHAOS_SEED", 1))
CLIENTS = 12
PATIENCE_S = 60


class Engine:
    def __init__(self, role: str) -> None:
        self.role, self.port = role, 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, str(HERE / "mock_engine.py"), self.role, str(self.port)], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Proxy:
    def __init__(self, engines: list[Engine]) -> None:
        def addresses(role: str) -> str:
            return ",".join(f"127.0.0.1:{engine.port}" for engine in engines if engine.role == role)

        self.process = subprocess.Popen(
            [str(PROGRAM), "proxy", "--host=127.0.0.1", "--port=0", "--dialect=vllm-pull", f"--prefill={addresses('prefill')}",
             f"--decode={addresses('decode')}", "--prefill_timeout=1", "--first_token_timeout=1", "--stream_timeout=1", "--probe_interval=1",
             "--attempts=6"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "MC_LOG_LEVEL": "ERROR"})
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().split()[-1]}"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.stdout.close()


class Ledger:
    """What became of requests: "right", or an explicit error; everything else is a fault and kept with its story."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    async def ask(self, session: aiohttp.ClientSession, url: str, prompt: list[int], stream: bool) -> str:
        body = {"model": "m", "prompt": prompt, "max_tokens": 6, "stream": stream}
        try:
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                text = (await answer.read()).decode()
                outcome = self._judge(answer.status, text, prompt, stream and answer.content_type == "text/event-stream")
        except (aiohttp.ClientError, asyncio.TimeoutError) as problem:
            outcome = f"lost: {type(problem).__name__} {problem}"
        self.counts[outcome.split(":")[0]] += 1
        if outcome.split(":")[0] in ("lost", "wrong"):
            self.faults.append(f"{outcome} (prompt {prompt}, {'streamed' if stream else 'whole'})")
        return outcome

    @staticmethod
    def _judge(status: int, text: str, prompt: list[int], streamed: bool) -> str:
        if status != 200:
            said = json.loads(text)["error"]
            return f"refused {status}: {said}" if status in (429, 502, 503) and said else f"wrong: {status} {text}"
        if not streamed:
            return "right" if json.loads(text)["choices"][0]["token_ids"] == answer_to(prompt) else f"wrong: {text}"
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]" or events.count("[DONE]") != 1:
            return f"lost: a stream without its end {events}"
        said = [json.loads(event) for event in events[:-1]]
        tokens = [token for event in said if "choices" in event for token in event["choices"][0]["token_ids"]]
        if any("error" in event for event in said):
            # What came before the error must still be the beginning of the answer, once.
            return "broken off" if tokens == answer_to(prompt)[: len(tokens)] else f"wrong: {events}"
        return "right" if tokens == answer_to(prompt) else f"wrong: {events}"


async def disturb(engines: list[Engine], choose: random.Random, proxy: str, session: aiohttp.ClientSession, over: asyncio.Event) -> None:
    """One engine of a role at a time."""
    while not over.is_set():
        engine = choose.choice(engines)
        what = choose.choice(("kill", "kill", "stop", "drain"))
        pause = choose.uniform(0.1, 1.2)
        if what == "kill":
            engine.kill()
            await asyncio.sleep(pause)
            await asyncio.to_thread(engine.start)
        elif what == "stop":
            engine.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(pause)
            engine.process.send_signal(signal.SIGCONT)
        else:
            for how in ("drain", "undrain"):
                async with session.post(f"{proxy}/instances/{how}", json={"name": f"127.0.0.1:{engine.port}"}) as answer:
                    assert answer.status == 200
                await asyncio.sleep(pause)


async def run(proxy: str, engines: list[Engine], ledger: Ledger) -> None:
    choose, over = random.Random(SEED), asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        async def client(number: int) -> None:
            mine = random.Random(SEED * 1000 + number)
            while not over.is_set():
                await ledger.ask(session, proxy, [mine.randrange(1 << 30) for _ in range(mine.randrange(1, 30))], mine.random() < 0.5)

        asyncio.get_running_loop().call_later(SECONDS, over.set)
        roles = [[engine for engine in engines if engine.role == role] for role in ("prefill", "decode")]
        await asyncio.gather(*(disturb(some, choose, proxy, session, over) for some in roles), *(client(number) for number in range(CLIENTS)))
        after = Ledger()
        for number in range(20):
            outcome = await after.ask(session, proxy, [number], number % 2 == 0)
            assert outcome == "right", outcome
        async with session.get(f"{proxy}/status") as answer:
            status = await answer.json()
        assert (status["open_requests"], status["waiting_requests"]) == (0, 0), status


def test_no_request_is_lost_or_answered_twice() -> None:
    engines = [Engine(role) for role in ("prefill", "prefill", "prefill", "decode", "decode", "decode")]
    proxy = Proxy(engines)
    ledger = Ledger()
    try:
        asyncio.run(run(proxy.url, engines, ledger))
        assert not ledger.faults, f"{ledger.counts}\n" + "\n".join(ledger.faults[:10])
        total = sum(ledger.counts.values())
        assert total > 100 and ledger.counts["right"] > 0.9 * total, ledger.counts
        print(dict(ledger.counts))
        assert proxy.stop() == 0
    finally:
        for engine in engines:
            engine.kill()
        proxy.process.kill()
