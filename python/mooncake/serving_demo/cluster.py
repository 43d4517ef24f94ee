# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode processes, a pool for prefixes and the conductor in front, on this machine; and chats with them whose every token is checked."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from .. import cli
from .model import Model

PATIENCE_S = 60.0  # against hangs only


def _quiet() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but we end it


class Process:
    """One that says on its first line where it is."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_quiet)

    def wait_until_ready(self) -> str:
        """What it said."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        threading.Thread(target=lambda: all(True for _ in self._process.stdout or ()), daemon=True).start()
        return said

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Instance(Process):
    def __init__(self, role: str, tp: int, block_tokens: int, *flags: str) -> None:
        self.role, self.tp, self.block_tokens = role, tp, block_tokens
        super().__init__([
            sys.executable, "-m", "mooncake.serving_demo.instance", "--role", role, "--tp", str(tp), "--block-tokens", str(block_tokens), *flags])
        self.url, self.bootstrap = "", 0

    def wait_until_ready(self) -> str:
        where = json.loads(said := super().wait_until_ready())
        self.url, self.bootstrap = f"127.0.0.1:{where['port']}", where["bootstrap_port"]
        return said

    def state(self) -> dict[str, Any]:
        return dict(requests.get(f"http://{self.url}/state", timeout=PATIENCE_S).json())


class Cluster:
    """Two prefill and two decode instances, all of different shape. `master`: where prefixes are stored; "": nowhere."""

    def __init__(self, master: str = "", *, dialect: str = "vllm-mooncake", layer_seconds: float = 0.0) -> None:
        self._processes: list[Process] = []
        self.model = Model()
        try:
            flags = ["--layer-seconds", str(layer_seconds), *(["--master", master] if master else [])]
            self.prefill = [self._start(Instance("prefill", tp, size, *flags)) for tp, size in ((2, 16), (4, 8))]
            self.decode = [self._start(Instance("decode", tp, size)) for tp, size in ((1, 4), (4, 32))]
            for instance in (*self.prefill, *self.decode):
                instance.wait_until_ready()
            self._processes.append(proxy := Process([
                cli.program("mooncake"), "proxy", "--host=127.0.0.1", "--port=0", f"--dialect={dialect}", "--block_tokens=32",
                "--prefill=" + ",".join(f"{one.url}/{one.bootstrap}" for one in self.prefill), "--decode=" + ",".join(one.url for one in self.decode)]))
            self.url = f"http://127.0.0.1:{proxy.wait_until_ready().split()[-1]}"
        except BaseException:
            self.close()
            raise

    def _start(self, instance: Instance) -> Instance:
        self._processes.append(instance)
        return instance

    def ask(self, prompt: Sequence[int], count: int) -> list[int]:
        """RuntimeError: it was not answered."""
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": count}
        answer = requests.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.text}")
        return list(answer.json()["choices"][0]["token_ids"])

    def ask_streaming(self, prompt: Sequence[int], count: int) -> list[int]:
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": count, "stream": True}
        tokens: list[int] = []
        with requests.post(f"{self.url}/v1/completions", json=body, stream=True, timeout=PATIENCE_S) as answer:
            for line in answer.iter_lines():
                if line.startswith(b"data: {"):
                    tokens += json.loads(line[6:])["choices"][0]["token_ids"]
        return tokens

    def kill_busy_prefill(self) -> Instance:
        """Ends a prefill instance without a word while it computes."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for instance in self.prefill:
                if instance.state()["running"]:
                    instance.kill()
                    self.prefill.remove(instance)
                    return instance
        raise RuntimeError("no prefill instance had anything to do")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()


@dataclass
class Chats:
    """Prompts that begin alike: some chats about the same documents, each turn after the other."""

    seed: int = 1

    def prompts(self, count: int) -> list[list[int]]:
        choose = random.Random(self.seed)
        documents = [[choose.randrange(256) for _ in range(choose.randrange(96, 320))] for _ in range(3)]
        chats = [list(choose.choice(documents)) for _ in range(4)]
        made = []
        for _ in range(count):
            chat = choose.choice(chats)
            chat += [choose.randrange(256) for _ in range(choose.randrange(5, 60))]
            made.append(list(chat))
        return made


def run(master: str, seed: int = 1) -> int:
    """The demonstration. 0: every token was right."""
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    cluster = Cluster(master, layer_seconds=0.002)
    try:
        for one in (*cluster.prefill, *cluster.decode):
            print(f"{one.role:<8} tensor parallelism {one.tp}, blocks of {one.block_tokens:>2} tokens, http://{one.url}")
        print(f"conductor {cluster.url}\n")
        prompts = Chats(seed).prompts(24)
        right = _ask_all(cluster, prompts)
        stored = sum(one.state()["stored_tokens"] for one in cluster.prefill)
        print(f"{right} of {len(prompts)} answers are those of a single process, token by token")
        asked = sum(len(prompt) for prompt in prompts)
        print(f"{stored:,} of {asked:,} prompt tokens came from the store, written by whichever tensor parallelism was first")
        states = [one.state() for one in cluster.decode]
        print(f"{sum(state['loaded_bytes'] for state in states):,} bytes of KV cache were read by decode ranks in {sum(state['load_steps'] for state in states):,} "
              "steps, layer by layer while the prompt was computed")
        survived = _kill_one(cluster, prompts[-1] + [1, 2, 3] * 200)
        print(f"a prefill process was killed in the midst of a request: the answer is {'right' if survived else 'WRONG'}")
        return 0 if right == len(prompts) and survived else 1
    finally:
        cluster.close()


def _ask_all(cluster: Cluster, prompts: Sequence[Sequence[int]]) -> int:
    right = 0
    for number, prompt in enumerate(prompts):
        ask = cluster.ask_streaming if number % 2 else cluster.ask
        right += ask(prompt, 12) == cluster.model.generate(prompt, 12)
    return right


def _kill_one(cluster: Cluster, prompt: Sequence[int]) -> bool:
    answer: list[list[int]] = []
    asking = threading.Thread(target=lambda: answer.append(cluster.ask(prompt, 12)))
    asking.start()
    cluster.kill_busy_prefill()
    asking.join()
    return answer == [cluster.model.generate(prompt, 12)]
