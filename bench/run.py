#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the installed package against what this machine can do at best, in one run.

Every row compares a transfer between two processes with a limit that bench/raw_limits.cpp measures right before it. Absolute
numbers change from machine to machine and from minute to minute; the ratios are what a change of the code is judged by.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from children import HERE, Child
from geometry import KiB, MiB, size_name
from noise import Noise
from pool import Pool

NOISE_MAX = 0.1  # share of the machine that others may use during a sample that counts
BUFFER = 288 * MiB  # 1 MiB x 128 with gaps, and some
QUIET = {"MC_LOG_LEVEL": "WARNING"}
# Two processes each: their environment and flags.
PAIRS: dict[str, tuple[dict[str, str], list[str]]] = {
    "tcp": ({"MC_TRANSPORTS": "tcp"}, []),
    "own": ({}, ["--managed"]),  # the engine's memory on both sides
    "foreign": ({}, []),         # the program's
}
# A client, and a pool of two processes.
POOLS: dict[str, dict[str, str]] = {"store": {}, "store tcp": {"MC_TRANSPORTS": "tcp"}}
POOL_BYTES = 1024 * MiB


class Limits:
    """The raw_limits program, compiled if needed."""

    def __init__(self) -> None:
        program = HERE.parent / "build" / "bench" / "raw_limits"
        source = HERE / "raw_limits.cpp"
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            program.parent.mkdir(parents=True, exist_ok=True)
            compiler = os.environ.get("CXX", "c++")
            subprocess.run([compiler, "-O3", "-std=c++20", "-pthread", str(source), "-o", str(program)], check=True)
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def measure(self, name: str, size: int, count: int, seconds: float) -> dict[str, float]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{name} {size} {count} {seconds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"raw_limits failed at {name} {size} {count}")
        return dict(zip(("gbps", "p50_us", "p99_us"), map(float, line.split())))

    def __enter__(self) -> "Limits":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class Row:
    """One line of the result. `limit`: what raw_limits is asked, or the same question to us with other arguments."""

    name: str
    pair: str
    ask: dict[str, Any]
    limit: tuple[str, int, int] | dict[str, Any] | float
    target: float | None           # None: only to be looked at
    key: str = "gbps"              # "gbps", "keys": at least target x limit; "p50_us", "p99_us", "cpu": at most
    limit_key: str = ""            # if another one than `key`
    ours: float = 0
    limit_value: float = 0
    ratio: float = 0
    noise: float = 0               # of the samples that were used
    limit_pair: str = ""           # who answers the question of the limit, if another pair
    limit_times: float = 1         # the limit is so many times that
    samples: list[dict[str, float]] = field(default_factory=list)

    @property
    def more_is_better(self) -> bool:
        return self.key in ("gbps", "keys")

    @property
    def ok(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.more_is_better else self.ratio <= self.target


def question(op: str, size: int, batch: int = 1, **more: Any) -> dict[str, Any]:
    return {"do": "measure", "op": op, "size": size, "batch": batch, **more}


def tcp_rows() -> list[Row]:
    socket = ("socket", 2, MiB)
    rows = []
    for size, batch, target in ((64 * MiB, 1, 0.9), (MiB, 128, 0.9), (64 * KiB, 128, 0.7), (4 * KiB, 128, 0.35)):
        for op in ("write", "read"):
            rows.append(Row(f"tcp {op} {size_name(size)} x{batch}", "tcp", question(op, size, batch), socket, target))
    for op in ("write", "read"):
        rows.append(Row(f"tcp {op} 1 MiB x128, unpaced limit", "tcp", question(op, MiB, 128), ("reno", 2, MiB), 0.6))
    rows.append(Row("tcp write 4 KiB x1 p50", "tcp", question("write", 4 * KiB), ("pingpong", 4 * KiB, 1), 2.0, "p50_us"))
    return rows


def same_host_rows() -> list[Row]:
    rows = []
    for size, batch in ((64 * KiB, 128), (MiB, 128), (64 * MiB, 1)):
        for op in ("write", "read"):
            rows.append(Row(f"shm own memory {op} {size_name(size)} x{batch}", "own", question(op, size, batch),
                            ("memcpy", size, batch), 0.8))
    for op, call in (("write", "writev"), ("read", "readv")):
        for size, batch in ((64 * MiB, 1), (MiB, 128)):
            rows.append(Row(f"shm foreign memory {op} {size_name(size)} x{batch}", "foreign", question(op, size, batch),
                            (call, size, batch), 0.9))
        for prepared, target in ((True, 0.8), (False, 0.6)):
            rows.append(Row(f"shm foreign memory {op} 4 KiB x128 {'prepared' if prepared else 'fresh'}", "foreign",
                            question(op, 4 * KiB, 128, prepared=prepared), (call, 4 * KiB, 128), target))
        single = question(op, 4 * KiB)
        rows.append(Row(f"same host {op} 4 KiB x1 p50, us", "foreign", single, 5.0, 1.0, "p50_us"))
        rows.append(Row(f"same host {op} 4 KiB x1 p99 over p50", "foreign", single, single, 5.0, "p99_us", "p50_us"))
    return rows


def other_rows() -> list[Row]:
    rows = []
    for pair, name in (("tcp", "tcp"), ("foreign", "same host")):
        for op, size, batch in (("write", 64 * KiB, 32), ("read", 64 * KiB, 32), ("write", 4 * KiB, 128), ("read", 4 * KiB, 128)):
            ask = question(op, size, batch)
            rows.append(Row(f"{name} {op} {size_name(size)} x{batch}, 4 threads over 1", pair, ask | {"threads": 4}, ask | {"sets": 4}, 1.0))
    rows.append(Row("idle engine, share of a core", "tcp", {"do": "idle"}, 0.01, 1.0, "cpu"))
    return rows


def store_rows() -> list[Row]:
    rows = []
    for op, engine_op in (("put", "write"), ("get", "read")):
        large, small = question(op, MiB, 32), question(op, 4 * KiB, 128)
        rows.append(Row(f"store {op} 1 MiB x32", "store", large, ("memcpy", MiB, 32), 0.7))
        rows.append(Row(f"store {op} 1 MiB x32 over tcp", "store tcp", large, question(engine_op, MiB, 32), 0.85, limit_pair="tcp"))
        rows.append(Row(f"store {op} 4 KiB x128, keys/s", "store", small, 500e3, 1.0, "keys"))
        rows.append(Row(f"store {op} 4 KiB x128 over tcp, keys/s", "store tcp", small, 150e3, 1.0, "keys"))
    rows.append(Row("store get 4 KiB x1 p50, us", "store", question("get", 4 * KiB), 20.0, 1.0, "p50_us"))
    # The copy itself comes on top of the two questions; what asking costs in Python is in both.
    rows.append(Row("store put 4 KiB x1 p50 over two round trips", "store", question("put", 4 * KiB), question("miss", 0), 1.0, "p50_us",
                    limit_times=2))
    # What a put cannot do without: two questions, and a word to the node before each answer, between processes that sleep meanwhile. To be
    # looked at, not to be met: on one core they take a third of what they take on two that sleep.
    rows.append(Row("store put 4 KiB x1 p50 over its bare messages", "store", question("put", 4 * KiB), ("told", 200, 2), None, "p50_us"))
    for op in ("hit", "miss"):
        rows.append(Row(f"store exist x1000 {op}, keys/s", "store", question(op, 64, 1000), 4e6, 1.0, "keys"))
    return rows


class Initiators:
    """Who is asked, by the pair or pool: started when first needed, with the package of one interpreter."""

    def __init__(self, stack: ExitStack, pids: list[int], python: str = sys.executable):
        self._stack = stack
        self._pids = pids
        self._python = python
        self._initiators: dict[str, Child] = {}

    def __getitem__(self, pair: str) -> Child:
        if pair not in self._initiators:
            self._initiators[pair] = self._of_pool(POOLS[pair]) if pair in POOLS else self._of_pair(*PAIRS[pair])
        return self._initiators[pair]

    def _of_pool(self, env: dict[str, str]) -> Child:
        pool = self._stack.enter_context(Pool(POOL_BYTES, env=QUIET | env, python=self._python))
        pool.wait_for_pages()  # memcpy has its own, too
        client = self._stack.enter_context(Child("store_worker.py", pool.address, env=QUIET | env, python=self._python))
        client.ask(do="verify")
        self._pids += [*pool.pids, client.pid]
        return client

    def _of_pair(self, env: dict[str, str], flags: list[str]) -> Child:
        target = self._stack.enter_context(Child("engine_worker.py", "target", str(BUFFER), *flags, env=QUIET | env, python=self._python))
        initiator = self._stack.enter_context(Child("engine_worker.py", "initiator", str(BUFFER), target.hello["name"], str(target.hello["address"]),
                                                    *flags, env=QUIET | env, python=self._python))
        initiator.ask(do="verify")
        self._pids += [target.pid, initiator.pid]
        return initiator


class Bench:
    def __init__(self, stack: ExitStack, seconds: float, patience: float):
        self._patience = patience
        self._limits = stack.enter_context(Limits())
        self._seconds = seconds
        self._pids = [self._limits.pid]
        self._initiators = Initiators(stack, self._pids)

    def sample(self, row: Row) -> dict[str, float]:
        """Ours and the limit, one right after the other."""
        child = self._initiators[row.pair]
        self._wait_for_quiet()
        with Noise(self._pids) as noise:
            ours, limit = self._once(row, child)
        return {"ours": ours, "limit": limit, "ratio": ours / limit, "noise": noise.share}

    def _wait_for_quiet(self) -> None:
        while self._patience > 0:
            with Noise(self._pids) as noise:
                time.sleep(0.1)
            if noise.share <= NOISE_MAX:
                return
            time.sleep(0.4)
            self._patience -= 0.5

    def _once(self, row: Row, child: Child) -> tuple[float, float]:
        limit_key = row.limit_key or row.key
        if isinstance(row.limit, tuple):
            name, size, count = row.limit
            limit = self._limits.measure(name, size, count, self._seconds)[limit_key]
        elif isinstance(row.limit, dict):
            asked = self._initiators[row.limit_pair] if row.limit_pair else child
            limit = asked.ask(**row.limit, seconds=self._seconds)[limit_key]
        else:
            limit = row.limit
        ours = child.ask(**row.ask, seconds=self._seconds)[row.key]
        return ours, limit * row.limit_times


def measure(rows: list[Row], seconds: float, repeats: int, patience: float) -> None:
    """Until every row has `repeats` samples from a quiet machine, or three times as many of any kind."""
    with ExitStack() as stack:
        bench = Bench(stack, seconds, patience)
        for _ in range(3 * repeats):
            for row in rows:
                if len(quiet_samples(row)) < repeats:
                    row.samples.append(bench.sample(row))
    for row in rows:
        used = quiet_samples(row) or row.samples
        row.ours, row.limit_value, row.ratio, row.noise = (
            statistics.median(sample[key] for sample in used) for key in ("ours", "limit", "ratio", "noise"))


def quiet_samples(row: Row) -> list[dict[str, float]]:
    return [sample for sample in row.samples if sample["noise"] <= NOISE_MAX]


def print_table(rows: list[Row]) -> None:
    print(f"{'':44} {'ours':>9} {'limit':>9} {'ratio':>7} {'target':>8}")
    for row in rows:
        sign = ">=" if row.more_is_better else "<="
        digits = 0 if row.key == "keys" else 3
        wanted = f"{sign:>3} {row.target:4.2f} {'ok' if row.ok else 'MISS'}" if row.target is not None else f"{'-':>8}"
        print(f"{row.name:44} {row.ours:9.{digits}f} {row.limit_value:9.{digits}f} {row.ratio:7.2f} {wanted}"
              f"{f'  (others used {row.noise:.0%} of the machine)' if row.noise > NOISE_MAX else ''}")
    print("GB/s, or what the name says: keys/s, or microseconds for p50 and p99")


def all_rows() -> list[Row]:
    return tcp_rows() + same_host_rows() + other_rows() + store_rows()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repeat")
    parser.add_argument("--seconds", type=float, default=0.4, help="per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=30, help="seconds to wait, in all, for others to leave the machine alone")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="fail if a row misses its target")
    arguments = parser.parse_args()
    seconds, repeats = (0.15, 1) if arguments.quick else (arguments.seconds, arguments.repeats)
    rows = [row for row in all_rows() if arguments.only in row.name]
    measure(rows, seconds, repeats, arguments.patience)
    if arguments.json:
        print(json.dumps([asdict(row) | {"ok": row.ok} for row in rows], indent=1))
    else:
        print_table(rows)
    return 1 if arguments.check and not all(row.ok for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
