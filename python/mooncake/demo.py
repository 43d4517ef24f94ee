# SPDX-License-Identifier: Apache-2.0
"""A pool on this machine at work: master and node in one process, clients that chat with it over every path, a live summary.

    python -m mooncake.demo                       until Ctrl-C; the admin page stays up meanwhile
    python -m mooncake.demo --once                some seconds, then ends: 0 only if every byte was right and nothing was refused
    python -m mooncake.demo --trace TRACE.jsonl   the requests of a trace instead of made-up chats
    python -m mooncake.demo --ssd FOLDER          values that leave memory stay readable on a disk
    python -m mooncake.demo --serve               a tiny model behind prefill and decode processes, a store and the conductor; ends by itself
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import cli
from ._replay import Player, conversations, quantile_us, read_trace
from .engine import TransferEngine
from .store import MooncakeDistributedStore

SLICE_S = 0.25
SAMPLES_MAX = 20_000


class Pool:
    """The process that is master and node."""

    def __init__(self, pool_bytes: int, admin_port: int, ssd: str = "") -> None:
        command = [cli.program("mooncake_standalone"), "--port=0", f"--metrics_port={admin_port}", f"--global_segment_size={pool_bytes}"]
        if ssd:
            command += ["--enable_offload", "--promotion_on_hit", f"--offload_path={os.path.abspath(ssd)}"]
        self.master = self.admin = ""
        # An interrupt must not come between the start of the process and the place where we see to its end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_ignore_interrupt)
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            raise
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._wait_until_ready()
        except BaseException:  # the user's interrupt, most likely, which the process does not hear
            self.close()
            raise
        threading.Thread(target=lambda: all(True for _ in self._process.stdout), daemon=True).start()

    def _wait_until_ready(self) -> None:
        said = []
        for line in self._process.stdout:
            said.append(line)
            if found := re.search(r"Master service started on port (\d+)", line):
                self.master = f"127.0.0.1:{found[1]}"
            if found := re.search(r"admin page (http://\S+)", line):
                self.admin = found[1]
            if "pool is ready" in line:
                return
        raise RuntimeError(f"mooncake_standalone ended with {self._process.wait()}:\n{''.join(said)}")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but we end it


@dataclass
class Path:
    title: str
    env: dict[str, str] = field(default_factory=dict)


PATHS = [Path("same host"), Path("network (tcp)", {"MC_TRANSPORTS": "tcp"})]


class Line:
    """One client, and what it has seen."""

    def __init__(self, path: Path, master: str, requests: Iterator[list[int]], block_bytes: int) -> None:
        self.path, self._requests, self._block_bytes = path, requests, block_bytes
        self._seconds = 0.0
        saved = {name: os.environ.get(name) for name in path.env}
        os.environ.update(path.env)  # an engine reads its environment when it is initialized
        try:
            self._engine = TransferEngine()
            if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
                raise RuntimeError(self._engine.last_error())
            self._store = MooncakeDistributedStore()
            code = self._store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master, self._engine.get_engine())
            if code != 0:
                raise RuntimeError(f"setup: {code}")
        finally:
            for variable, value in saved.items():
                os.environ.pop(variable) if value is None else os.environ.update({variable: value})
        self._player = Player(self._store, block_bytes, prefix=path.title.split()[0] + "-")
        self.tally = self._player.tally

    def run(self, seconds: float) -> bool:
        """False when there are no more requests."""
        start = now = time.perf_counter()
        more = True
        while more and now - start < seconds:
            blocks = next(self._requests, None)
            more = blocks is not None
            if more:
                self._player.play(blocks)
            now = time.perf_counter()
        self._seconds += now - start
        for samples in (self.tally.get_ns, self.tally.put_ns):
            del samples[:-SAMPLES_MAX]
        return more

    def carriers(self) -> str:
        counts = re.findall(r'^mooncake_transfer_bytes_total\{.*?path="(\w+)".*\} (\S+)$', self._engine.get_metrics(), re.MULTILINE)
        return "+".join(sorted({name for name, moved in counts if float(moved) > 0})) or "-"

    def reads(self) -> dict[str, int]:
        """Values read so far, by where they lay."""
        counts = re.findall(r'^mooncake_client_reads_total\{.*?tier="(\w+)".*\} (\S+)$', self._store.get_metrics(), re.MULTILINE)
        return {tier: int(float(count)) for tier, count in counts}

    def text(self) -> str:
        tally, seconds = self.tally, max(self._seconds, 1e-9)
        moved = (tally.hit + tally.put) * self._block_bytes
        times = "".join(f"{quantile_us(samples, share):>9,.0f}" for samples in (tally.get_ns, tally.put_ns) for share in (0.5, 0.99))
        return (f"{self.path.title:<16}{self.carriers():<8}{tally.requests / seconds:>8,.0f}{tally.asked / seconds:>10,.0f}{moved / seconds / 1e9:>8.2f}"
                f"{tally.hit_ratio:>8.1%}{times}{tally.refused:>9}{tally.wrong:>7}")

    def good(self) -> bool:
        return self.tally.wrong == 0 and self.tally.refused == 0 and self.tally.hit > 0

    def close(self) -> None:
        self._player.close()
        self._store.close()
        self._engine.close()


HEADER = (f"{'path':<16}{'over':<8}{'req/s':>8}{'blocks/s':>10}{'GB/s':>8}{'hits':>8}{'get p50':>9}{'p99 us':>9}{'put p50':>9}{'p99 us':>9}"
          f"{'refused':>9}{'wrong':>7}")


class Disk:
    """What the master says of the disk behind the memory."""

    def __init__(self, admin: str) -> None:
        self._url, self._start = admin + "metrics", time.perf_counter()

    def text(self, lines: list[Line]) -> str:
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            counts = {name: float(value) for name, value in re.findall(r"^(master_\w+) (\S+)$", answer.read().decode(), re.MULTILINE)}
        seconds = max(time.perf_counter() - self._start, 1e-9)
        read = [line.reads() for line in lines]
        memory, disk = (sum(one.get(tier, 0) for one in read) for tier in ("memory", "disk"))
        return (f"SSD: written {counts['master_offload_completed_bytes_total'] / seconds / 1e6:,.0f} MB/s, back to memory "
                f"{counts['master_promotion_completed_bytes_total'] / seconds / 1e6:,.0f} MB/s; blocks read: {memory:,} from memory, {disk:,} from SSD"
                f" ({disk / max(memory + disk, 1):.1%})")


class Screen:
    """Redraws the summary in place on a terminal; elsewhere prints it at the end only."""

    def __init__(self, note: str) -> None:
        self._live = sys.stdout.isatty()
        self._note = note
        self._drawn = 0

    def show(self, lines: list[Line], disk: Disk | None, final: bool = False) -> None:
        if not self._live and not final:
            return
        text = [HEADER, *(line.text() for line in lines), "", *([disk.text(lines), ""] if disk else []), self._note + ("" if final else "  Ctrl-C ends.")]
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
        print("\n".join(text), flush=True)
        self._drawn = len(text)


def run(arguments: argparse.Namespace) -> int:
    pool = Pool(arguments.pool_mb << 20, arguments.admin_port, arguments.ssd)
    lines: list[Line] = []
    try:
        for number, path in enumerate(PATHS):
            requests = read_trace(arguments.trace) if arguments.trace else conversations(seed=number)
            lines.append(Line(path, pool.master, requests, arguments.block_kb << 10))
        print(f"master {pool.master}, admin page {pool.admin}\n", flush=True)
        disk = Disk(pool.admin) if arguments.ssd else None
        screen = Screen(f"{arguments.block_kb} KiB a block, {arguments.pool_mb} MiB of pool; get and put: time of one batch of up to 128 blocks.")
        try:
            for turn in itertools.count(1):
                more = [line.run(SLICE_S) for line in lines]
                screen.show(lines, disk)
                if not any(more) or (arguments.once and turn * SLICE_S >= arguments.seconds):
                    break
            if not arguments.once:
                signal.pause()  # the trace is over, the admin page stays
        except KeyboardInterrupt:
            pass
        screen.show(lines, disk, final=True)
        return 0 if all(line.good() for line in lines) else 1
    finally:
        for line in lines:
            line.close()
        pool.close()


def serve(arguments: argparse.Namespace) -> int:
    from .serving_demo.cluster import run as run_cluster  # NumPy is needed for this alone

    pool = Pool(arguments.pool_mb << 20, arguments.admin_port)
    try:
        return run_cluster(pool.master)
    finally:
        pool.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mooncake.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="end by itself, with 0 if every byte was right and nothing was refused")
    parser.add_argument("--serve", action="store_true", help="serve a tiny model with prefill and decode processes (needs NumPy)")
    parser.add_argument("--seconds", type=float, default=3.0, help="with --once: of work per path (%(default)s)")
    parser.add_argument("--trace", help="a file of requests as JSON lines with hash_ids")
    parser.add_argument("--ssd", default="", help="a folder on a disk, for values that leave memory")
    parser.add_argument("--pool-mb", type=int, default=512, help="memory the node lends (%(default)s)")
    parser.add_argument("--block-kb", type=int, default=64, help="size of a block (%(default)s)")
    parser.add_argument("--admin-port", type=int, default=0, help="of the admin page; 0: any (%(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # the summary says it all
    try:
        return serve(arguments) if arguments.serve else run(arguments)
    except KeyboardInterrupt:  # before there was anything to show
        return 130


if __name__ == "__main__":
    sys.exit(main())
