#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the installed package beside other software doing the same work, in one run: NIXL (UCX) and the public Mooncake package.

Each needs a Python environment of its own; without --nixl-python / --public-python they are made under build/peers. One that
cannot be made or loaded is left out, with the reason. All take turns on every row, so that they see the same machine.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from children import HERE, Child, ChildError
from geometry import KiB, MiB, room, size_name

BUFFER = 288 * MiB
OURS = "ours"
PACKAGES = {"nixl": ("nixl", "nixl._api"), "public": ("mooncake-transfer-engine-non-cuda", "mooncake.engine")}
SCRIPTS = {OURS: "engine_worker.py", "public": "engine_worker.py", "nixl": "nixl_worker.py"}
# What makes each of them use TCP alone, and nothing for what it does by itself.
ONLY_TCP = {OURS: {"MC_TRANSPORTS": "tcp"}, "public": {"MC_FORCE_TCP": "1"}, "nixl": {"UCX_TLS": "tcp,self"}}
QUIET = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2", "NIXL_LOG_LEVEL": "ERROR", "PYTHONPATH": ""}
# (ours, theirs): which of our forms stands against which of theirs.
CONTESTS = [("ours", "public"), ("ours", "nixl"), ("ours prepared", "nixl prepared")]


@dataclass(frozen=True)
class Work:
    op: str
    size: int
    batch: int
    scatter: bool

    @property
    def name(self) -> str:
        return f"{self.op} {size_name(self.size)} x{self.batch}{' scattered' if self.scatter else ''}"


def all_work(quick: bool) -> Iterator[Work]:
    sizes = (4 * KiB, MiB) if quick else (4 * KiB, 64 * KiB, MiB, 64 * MiB)
    batches = (1, 128) if quick else (1, 16, 128)
    for size, batch, scatter, op in itertools.product(sizes, batches, (False, True), ("write", "read")):
        if room(size, batch, scatter) <= BUFFER and not (scatter and batch == 1):
            yield Work(op, size, batch, scatter)


def find_python(name: str, given: str) -> str | None:
    """An interpreter that can load the peer's package; makes an environment if none is given."""
    package, module = PACKAGES[name]
    folder = HERE.parent / "build" / "peers" / name
    python = given or str(folder / "bin" / "python")
    if not given and not Path(python).exists():
        print(f"making {folder.relative_to(HERE.parent)} with {package}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", package])
        if installed.returncode != 0:
            print(f"without {name}: {package} cannot be installed", file=sys.stderr)
            return None
    loaded = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, env=os.environ | QUIET)
    if loaded.returncode != 0:
        print(f"without {name}: {loaded.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return python


class Pair:
    """The two processes of one contestant. They run only while they are asked: a progress thread that polls all the time would
    otherwise cost the others half the machine."""

    def __init__(self, stack: ExitStack, who: str, python: str, only_tcp: bool):
        env = QUIET | (ONLY_TCP[who] if only_tcp else {})
        self._target = stack.enter_context(Child(SCRIPTS[who], "target", str(BUFFER), python=python, env=env))
        peer = (self._target.hello["name"], str(self._target.hello["address"]))
        self._initiator = stack.enter_context(Child(SCRIPTS[who], "initiator", str(BUFFER), *peer, python=python, env=env))
        self._pause()

    def measure(self, **question: Any) -> dict[str, Any]:
        self._target.resume()
        self._initiator.resume()
        try:
            return self._initiator.ask(do="measure", **question)
        finally:
            self._pause()

    def _pause(self) -> None:
        self._initiator.pause()
        self._target.pause()


def turns(contestants: dict[str, Pair]) -> Iterator[tuple[str, Pair, bool]]:
    """(name, processes, prepared)"""
    for who, pair in contestants.items():
        yield who, pair, False
        if who != "public":
            yield f"{who} prepared", pair, True


def measure(contestants: dict[str, Pair], work: Work, seconds: float, repeats: int) -> dict[str, dict[str, float]]:
    samples: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for name, pair, prepared in turns(contestants):
            question: dict[str, Any] = {"op": work.op, "size": work.size, "batch": work.batch, "scatter": work.scatter}
            if prepared:
                question["prepared"] = True
            try:
                answer = pair.measure(seconds=seconds, **question)
                samples.setdefault(name, []).append(answer)
            except ChildError as problem:
                print(f"{name} {work.name}: {problem}", file=sys.stderr)
    return {name: {key: statistics.median(each[key] for each in got) for key in ("gbps", "p50_us", "p99_us")}
            for name, got in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nixl-python", default="", help="an interpreter that has nixl")
    parser.add_argument("--public-python", default="", help="an interpreter that has the public package")
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--paths", default="tcp,default", help="tcp: TCP alone; default: what each chooses")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()

    pythons = {OURS: sys.executable}
    for name, given in (("public", arguments.public_python), ("nixl", arguments.nixl_python)):
        if python := find_python(name, given):
            pythons[name] = python
    rows = []
    for path in arguments.paths.split(","):
        with ExitStack() as stack:
            contestants = {who: Pair(stack, who, python, path == "tcp") for who, python in pythons.items()}
            for work in all_work(arguments.quick):
                name = f"{path} {work.name}"
                if arguments.only not in name:
                    continue
                row = {"name": name, "figures": measure(contestants, work, arguments.seconds, arguments.repeats)}
                rows.append(row)
                if not arguments.json:
                    print_row(row, first=len(rows) == 1)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return 0


def print_row(row: dict[str, Any], first: bool) -> None:
    figures = row["figures"]
    if first:
        print(f"{'GB/s':36} {'ours':>8} {'public':>8} {'nixl':>8} {'ours prep':>9} {'nixl prep':>9}   ours over public, nixl, nixl prepared")
    speeds = [figures.get(name, {}).get("gbps") for name in ("ours", "public", "nixl", "ours prepared", "nixl prepared")]
    ratios = []
    for ours, theirs in CONTESTS:
        both = ours in figures and theirs in figures
        ratios.append(f"{figures[ours]['gbps'] / figures[theirs]['gbps']:7.2f}" if both else "      -")
    widths = (8, 8, 8, 9, 9)
    shown = " ".join(f"{s:{w}.3f}" if s is not None else f"{'-':>{w}}" for s, w in zip(speeds, widths))
    print(f"{row['name']:36} {shown}   {' '.join(ratios)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
