# SPDX-License-Identifier: Apache-2.0
"""Processes that are asked one question at a time: a line of JSON in, a line of JSON out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
MARK = "@ "  # starts a line that is an answer; libraries may print others


class ChildError(Exception):
    """A process ended, or answered with an error."""


class Child:
    """A Python script of this folder in a process of its own. Ends with the with-block."""

    def __init__(self, script: str, *arguments: str, python: str = sys.executable, env: dict[str, str] | None = None):
        self._name = " ".join((script, *arguments))
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        try:
            self.hello = self._answer()
        except ChildError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as problem:
            raise ChildError(f"{self._name} is gone") from problem
        return self._answer()

    def pause(self) -> None:
        """Takes the process off the machine until resume(), with whatever its threads do."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if not line.startswith(MARK):
                continue
            answer = json.loads(line[len(MARK):])
            if "error" in answer:
                raise ChildError(f"{self._name}: {answer['error']}")
            return answer
        raise ChildError(f"{self._name} ended with {self._process.wait()}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(hello: dict[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The other end: says hello, then answers until stdin ends."""
    print(MARK + json.dumps(hello), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as problem:  # noqa: BLE001: the asker decides
            reply = {"error": f"{type(problem).__name__}: {problem}"}
        print(MARK + json.dumps(reply), flush=True)


def figures(call: Callable[[], None], seconds: float) -> list[int]:
    """Nanoseconds of each call, repeated for some time."""
    clock = time.perf_counter_ns
    durations = []
    before = clock()
    end = before + int(seconds * 1e9)
    while before < end:
        call()
        after = clock()
        durations.append(after - before)
        before = after
    return durations


def summary(durations: list[int], bytes_per_call: int, elapsed_ns: int) -> dict[str, Any]:
    ordered = sorted(durations)
    return {
        "gbps": len(ordered) * bytes_per_call / elapsed_ns,
        "p50_us": ordered[len(ordered) // 2] / 1e3,
        "p99_us": ordered[len(ordered) * 99 // 100] / 1e3,
        "calls": len(ordered),
    }
