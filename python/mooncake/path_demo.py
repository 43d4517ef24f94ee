# SPDX-License-Identifier: Apache-2.0
"""Moves and verifies data over every path that works on this machine, and shows a live table of what it sees.

    python -m mooncake.path_demo           until Ctrl-C
    python -m mooncake.path_demo --once    about a second per path, then ends: 0 only if every byte was right
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, field

from .engine import TransferEngine

BUFFER_BYTES = 16 << 20
BLOCK_BYTES = 64 << 10
SMALL_BYTES = 4 << 10
PATIENCE_S = 30


@dataclass(frozen=True)
class Path:
    """One way to a peer; `env` is what both sides are told."""

    title: str
    host: str = "127.0.0.1"
    own: bool = False  # the peer is ourselves
    mapped: bool = False  # the peer's memory is one that this process can map
    env: dict[str, str] = field(default_factory=dict)


def paths_here() -> list[Path]:
    tcp = {"MC_TRANSPORTS": "tcp"}
    paths = [
        Path("own process", own=True),
        Path("shared memory, mapped", mapped=True),
        Path("shared memory, foreign"),
        Path("tcp", env=tcp),
    ]
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            paths.append(Path("tcp over IPv6", host="::1", env=tcp))
    except OSError:
        pass
    return paths


def start_engine(host: str) -> tuple[TransferEngine, str]:
    engine = TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", "rdma", "") != 0:
        raise RuntimeError(engine.last_error())
    port = engine.get_rpc_port()
    return engine, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ---- the peer


def serve(host: str, mapped: bool) -> None:
    """Lends memory until standard input ends; answers each line with the checksum of the memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but our parent ends us
    engine, name = start_engine(host)
    if mapped:
        address = engine.allocate_managed_buffer(BUFFER_BYTES)
    else:
        memory = mmap.mmap(-1, BUFFER_BYTES)
        assert engine.register_memory(memory) == 0, engine.last_error()
        address = engine.get_first_buffer_address(name)
    print(json.dumps({"name": name, "address": address}), flush=True)
    for _ in sys.stdin:
        print(zlib.crc32(engine.read_bytes_from_buffer(address, BUFFER_BYTES)), flush=True)


class Target:
    """The process at the other end."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "mooncake.path_demo", "--serve", path.host] + ["--mapped"] * path.mapped
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **path.env})
        hello = json.loads(self._process.stdout.readline() or "null")
        if hello is None:
            raise RuntimeError(f"the peer process ended with {self._process.wait(PATIENCE_S)}")
        self.name, self.address = hello["name"], hello["address"]

    def checksum(self) -> int:
        self._process.stdin.write("checksum\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)


class OwnTarget:
    """The engine itself as its peer."""

    def __init__(self, engine: TransferEngine, name: str) -> None:
        self._memory = mmap.mmap(-1, BUFFER_BYTES)
        assert engine.register_memory(self._memory) == 0, engine.last_error()
        self.name, self.address = name, engine.get_first_buffer_address(name)

    def checksum(self) -> int:
        return zlib.crc32(self._memory)

    def close(self) -> None:
        pass


# ---- one line of the table


class Line:
    """Both ends of one path and what was measured on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved_bytes = self.moved_ns = 0
        self.latencies_ns: list[int] = []
        self.verified_bytes = self.errors = 0
        self.problem = ""
        saved = {name: os.environ.get(name) for name in path.env}
        os.environ.update(path.env)  # an engine reads its environment when it is initialized
        try:
            self._engine, name = start_engine(path.host)
            self._target = OwnTarget(self._engine, name) if path.own else Target(path)
        finally:
            for variable, value in saved.items():
                os.environ.pop(variable) if value is None else os.environ.update({variable: value})
        self._source = mmap.mmap(-1, BUFFER_BYTES)
        self._back = mmap.mmap(-1, BUFFER_BYTES)
        offsets = range(0, BUFFER_BYTES, BLOCK_BYTES)
        lengths = [BLOCK_BYTES] * len(offsets)
        views = [memoryview(memory) for memory in (self._source, self._back)]
        remote = [self._target.address + offset for offset in offsets]
        self._send, self._fetch = (
            self._engine.prepare(self._target.name, [view[o:o + BLOCK_BYTES] for o in offsets], remote, lengths) for view in views)
        self._small = views[0][:SMALL_BYTES]

    def run(self, seconds: float) -> None:
        """Large batches, then small single transfers, then the proof that all arrived."""
        self._source[:] = os.urandom(BUFFER_BYTES)
        self._run_batches(seconds * 0.6)
        self._run_singles(seconds * 0.4)
        self._verify()

    def _failed(self) -> bool:
        self.errors += 1
        self.problem = self._engine.last_error()
        return False

    def _run_batches(self, seconds: float) -> bool:
        start = now = time.perf_counter_ns()
        while now - start < seconds * 1e9:
            if self._send.write() != 0:
                return self._failed()
            before, now = now, time.perf_counter_ns()
            self.moved_bytes += BUFFER_BYTES
            self.moved_ns += now - before
        return True

    def _run_singles(self, seconds: float) -> bool:
        write, name, address, block = self._engine.transfer_sync_write, self._target.name, self._target.address, self._small
        start = now = time.perf_counter_ns()
        while now - start < seconds * 1e9:
            if write(name, block, address) != 0:
                return self._failed()
            before, now = now, time.perf_counter_ns()
            self.latencies_ns.append(now - before)
        del self.latencies_ns[:-1_000_000]
        return True

    def _verify(self) -> bool:
        if self._send.write() != 0 or self._fetch.read() != 0:
            return self._failed()
        if self._target.checksum() != zlib.crc32(self._source) or self._back[:] != self._source[:]:
            self.problem = "the bytes at the peer are not those that were sent"
            self.errors += 1
            return False
        self.verified_bytes += 2 * BUFFER_BYTES  # there, and back
        return True

    def carriers(self) -> str:
        """The transports that really moved the bytes, as the engine counts them."""
        counts = re.findall(r'^mooncake_transfer_bytes_total\{.*?path="(\w+)".*\} (\S+)$', self._engine.get_metrics(), re.MULTILINE)
        return "+".join(sorted({name for name, moved in counts if float(moved) > 0})) or "-"

    def quantile_us(self, share: float) -> float:
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e3 if ordered else 0.0

    def text(self) -> str:
        rate = self.moved_bytes / self.moved_ns if self.moved_ns else 0.0
        ops = len(self.latencies_ns) / (sum(self.latencies_ns) / 1e9) if self.latencies_ns else 0.0
        return (f"{self.path.title:<24}{self.carriers():<8}{rate:>8.2f}{ops:>11,.0f}{self.quantile_us(0.5):>10.1f}{self.quantile_us(0.99):>10.1f}"
                f"{self.verified_bytes / 1e6:>11,.0f}{self.errors:>8}{'  ' + self.problem if self.problem else ''}")

    def close(self) -> None:
        self._engine.close()
        self._target.close()


HEADER = f"{'path':<24}{'over':<8}{'GB/s':>8}{'ops/s':>11}{'p50 us':>10}{'p99 us':>10}{'MB right':>11}{'errors':>8}"
NOTE = f"GB/s: {BLOCK_BYTES >> 10} KiB blocks, {BUFFER_BYTES // BLOCK_BYTES} a batch. ops/s and latency: one {SMALL_BYTES >> 10} KiB write at a time."


class Screen:
    """Redraws the table in place on a terminal; elsewhere prints it at the end only."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._drawn = 0

    def show(self, lines: list[Line], final: bool = False) -> None:
        if not self._live and not final:
            return
        text = [HEADER, *(line.text() for line in lines), "", NOTE + ("" if final else "  Ctrl-C ends.")]
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
        print("\n".join(text), flush=True)
        self._drawn = len(text)


def run(once: bool) -> int:
    lines: list[Line] = []
    broken = 0
    try:
        for path in paths_here():
            try:
                lines.append(Line(path))
            except (RuntimeError, OSError) as error:
                broken += 1
                print(f"{path.title}: {error}", file=sys.stderr)
        screen = Screen()
        try:
            while True:
                for line in lines:
                    line.run(1.0 if once else 0.25)
                    screen.show(lines)
                if once:
                    break
        except KeyboardInterrupt:
            pass
        screen.show(lines, final=True)
        return 0 if not broken and lines and all(line.verified_bytes and not line.errors for line in lines) else 1
    finally:
        for line in lines:
            line.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mooncake.path_demo", description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="one second per path, then end with 0 if every byte was right")
    parser.add_argument("--serve", metavar="HOST", help=argparse.SUPPRESS)
    parser.add_argument("--mapped", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # the table says it all
    if arguments.serve:
        serve(arguments.serve, arguments.mapped)
        return 0
    return run(arguments.once)


if __name__ == "__main__":
    sys.exit(main())
