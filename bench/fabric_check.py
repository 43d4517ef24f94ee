#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a machine with a fast network: what is in effect, what fits, how fast it is, and what happens when a peer dies.

    python bench/fabric_check.py --protocol efa --host 10.0.0.1 --remote "ssh 10.0.0.2" --remote-host 10.0.0.2 --report efa
    python bench/fabric_check.py                                   # fabric:tcp, both sides here

The target is this same file in another process, started by --remote (needs the package there). Writes REPORT.md and REPORT.json.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

MiB, GiB = 1 << 20, 1 << 30
PATIENCE_S = 60
# Two hosts of one placement group, GB/s for writes between host memory, as published for other software: to compare with.
PUBLISHED = {"p6-b300 16x400G": 283, "p6-b200 8x400G": 222, "p5en 16x200G": 214, "p5 32x100G": 64}


class Memory:
    """Anonymous memory, touched."""

    def __init__(self, length: int) -> None:
        import numpy

        self.map = mmap.mmap(-1, length)
        self.array = numpy.frombuffer(self.map, numpy.uint8)
        self.array[::4096] = 1
        self.address, self.length = self.array.ctypes.data, length


def open_engine(options: dict[str, Any], devices: str = "") -> Any:
    os.environ["MC_TRANSPORTS"] = "fabric"
    if options["nodes"]:
        os.environ["MC_FABRIC_NODES"] = options["nodes"]
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    code = engine.initialize(options["host"], "P2PHANDSHAKE", options["protocol"], devices)
    if code != 0:
        raise SystemExit(f"cannot start: {engine.last_error()}")
    return engine


# ---- the other side


def serve() -> None:
    """One JSON line in, one out, until the input ends."""
    options = json.loads(sys.stdin.readline())
    engine = open_engine(options)
    memory = Memory(options["bytes"])
    assert engine.register_memory(memory.address, memory.length) == 0, engine.last_error()
    name = f"{options['host']}:{engine.get_rpc_port()}"
    print(json.dumps({"name": name, "address": memory.address, "bytes": memory.length}), flush=True)
    sys.stdin.read()
    engine.close()


class Target:
    def __init__(self, arguments: argparse.Namespace, length: int = 256 * MiB) -> None:
        command = [sys.executable, __file__, "--serve"]
        if arguments.remote:
            command = shlex.split(arguments.remote) + [arguments.remote_python, arguments.remote_file, "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        setup = {"host": arguments.remote_host, "protocol": arguments.protocol, "nodes": arguments.remote_nodes, "bytes": length}
        self.process.stdin.write(json.dumps(setup) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the target did not start; its messages are above")
        hello = json.loads(line)
        self.name, self.address, self.bytes = hello["name"], hello["address"], hello["bytes"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


# ---- the checks


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the engine says about itself at start; told by a process of its own, whose log can be caught."""
    code = ("import fabric_check as check, json, sys; engine = check.open_engine(json.loads(sys.argv[1])); engine.close()")
    done = subprocess.run([sys.executable, "-c", code, json.dumps(own_options(arguments))], capture_output=True, text=True, timeout=PATIENCE_S,
                          cwd=Path(__file__).resolve().parent)
    wanted = ("profile ", "rail ", "left out", "emulates")
    lines = [re.sub(r"^.*? mooncake: ", "", line) for line in done.stderr.splitlines() if any(word in line for word in wanted)]
    if done.returncode != 0:
        raise SystemExit(f"cannot start:\n{done.stdout}{done.stderr}")
    return {"lines": lines, "emulated": [line for line in lines if "emulates" in line], "nics": [match[1] for line in lines if (match := re.match(r"rail \d+: (\S+) ", line))]}


def own_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"host": arguments.host, "protocol": arguments.protocol, "nodes": arguments.nodes}


def registration(engine: Any, limit: int) -> dict[str, Any]:
    """The largest buffer that can be registered at once, by bisection between 64 MiB and `limit`; not touched beforehand."""
    def fits(length: int) -> float | None:
        memory = mmap.mmap(-1, length)
        import numpy

        address = numpy.frombuffer(memory, numpy.uint8).ctypes.data
        began = time.monotonic()
        if engine.register_memory(address, length) != 0:
            return None
        took = time.monotonic() - began
        assert engine.unregister_memory(address) == 0, engine.last_error()
        return took

    low, high = 64 * MiB, limit
    took = fits(low)
    if took is None:
        return {"bytes": 0, "error": engine.last_error()}
    whole = fits(high)
    if whole is not None:
        return {"bytes": high, "seconds": whole, "limited_by": "the size that was asked for"}
    while high - low > max(low // 16, MiB):
        middle = (low + high) // 2
        seconds = fits(middle)
        if seconds is None:
            high = middle
        else:
            low, took = middle, seconds
    return {"bytes": low, "seconds": took, "limited_by": engine.last_error()}


def exhaustion(arguments: argparse.Namespace, limit: int) -> dict[str, Any]:
    """Buffers are registered until no more fit, or `limit` bytes do; then what was there before must still work, and what is given back be free again."""
    import numpy

    target = Target(arguments, length=64 * MiB)
    engine = open_engine(own_options(arguments))
    try:
        memory = Memory(MiB)
        assert engine.register_memory(memory.address, memory.length) == 0, engine.last_error()
        piece = max(64 * MiB, limit // 64)
        maps, error = [], ""
        while len(maps) * piece < limit:
            maps.append(mmap.mmap(-1, piece))
            if engine.register_memory(numpy.frombuffer(maps[-1], numpy.uint8).ctypes.data, piece) != 0:
                error = engine.last_error()
                maps.pop()
                break
        works = engine.transfer_sync_write(target.name, memory.address, target.address, memory.length) == 0
        given_back = all(engine.unregister_memory(numpy.frombuffer(one, numpy.uint8).ctypes.data) == 0 for one in maps)
        return {"bytes": len(maps) * piece, "error": error, "still_works": works, "given_back": given_back}
    finally:
        engine.close()
        target.close()


def measure(run: Callable[[], int], bytes_per_run: int, seconds: float) -> float:
    """GB/s."""
    assert run() == 0, "the first transfer failed"
    runs, began = 0, time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        assert run() == 0, "a transfer failed"
        runs += 1
    return runs * bytes_per_run / (now - began) / 1e9


def sweep(arguments: argparse.Namespace, nics: list[str]) -> list[dict[str, Any]]:
    """Speed by block size, with one, half and all of the NICs."""
    rows = []
    for count in sorted({1, max(1, len(nics) // 2), len(nics)}):
        chosen, options = ",".join(nics[:count]), own_options(arguments)
        target = Target(arguments)
        # Rails are told apart by their source address where there are no devices.
        engine = open_engine({**options, "nodes": chosen}) if options["nodes"] else open_engine(options, chosen)
        try:
            memory = Memory(target.bytes)
            assert engine.register_memory(memory.address, memory.length) == 0, engine.last_error()
            for block in (64 << 10, 256 << 10, MiB, 4 * MiB):
                batch = min(128, target.bytes // block)
                plan = engine.prepare(target.name, [memory.address + i * block for i in range(batch)], [target.address + i * block for i in range(batch)],
                                      [block] * batch)
                row = {"nics": count, "block": block, "write": measure(plan.write, batch * block, arguments.seconds),
                       "read": measure(plan.read, batch * block, arguments.seconds)}
                rows.append(row)
                print(f"  {count} NICs, {block >> 10} KiB: write {row['write']:.2f} GB/s, read {row['read']:.2f} GB/s", flush=True)
        finally:
            engine.close()
            target.close()
    return rows


def first_transfer(arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a first 4 KiB write, cold and after a warm-up; and of one later."""
    result = {}
    for name, warm in (("cold_ms", False), ("warm_ms", True)):
        target = Target(arguments, length=64 * MiB)
        engine = open_engine(own_options(arguments))
        try:
            memory = Memory(MiB)
            assert engine.register_memory(memory.address, memory.length) == 0
            if warm:
                began = time.monotonic()
                assert engine.warmup_efa_segment(target.name) == 0, engine.last_error()
                result["warm_up_ms"] = (time.monotonic() - began) * 1e3
            for key in (name, "later_ms"):
                began = time.monotonic()
                assert engine.transfer_sync_write(target.name, memory.address, target.address, 4096) == 0, engine.last_error()
                result[key] = (time.monotonic() - began) * 1e3
        finally:
            engine.close()
            target.close()
    return result


def peer_death(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds until transfers to a killed target fail, and whether its successor is reached."""
    target = Target(arguments, length=64 * MiB)
    engine = open_engine(own_options(arguments))
    try:
        memory = Memory(32 * MiB)
        assert engine.register_memory(memory.address, memory.length) == 0
        assert engine.transfer_sync_write(target.name, memory.address, target.address, memory.length) == 0
        batch = engine.batch_transfer_async_write(target.name, [memory.address] * 64, [target.address] * 64, [memory.length] * 64)
        target.kill()
        began = time.monotonic()
        outcome = engine.get_batch_transfer_status([batch])
        result = {"outcome": outcome, "seconds": time.monotonic() - began, "error": engine.last_error()}
        successor = Target(arguments, length=64 * MiB)
        result["successor_reached"] = engine.transfer_sync_write(successor.name, memory.address, successor.address, memory.length) == 0
        successor.close()
        return result
    finally:
        engine.close()


# ---- the report


def as_markdown(report: dict[str, Any]) -> str:
    lines = [f"# Fabric check: {report['protocol']}", "", f"{report['machine']}, {report['cpus']} cores, {report['date']}", "", "## Settings in effect", ""]
    lines += [f"    {line}" for line in report["settings"]["lines"]] or ["    none"]
    registered = report["registration"]
    lines += ["", "## Registration", "", f"{registered['bytes'] / GiB:.2f} GiB at once in {registered.get('seconds', 0):.3f} s; "
              f"limited by: {registered.get('limited_by', registered.get('error', ''))}"]
    full = report["exhaustion"]
    lines += ["", f"In pieces: {full['bytes'] / GiB:.2f} GiB, then {full['error'] or 'enough'}; what was there {'still works' if full['still_works'] else 'DOES NOT WORK'}, "
              f"all of it {'given back' if full['given_back'] else 'NOT given back'}", "", "Emulated by the provider: " + ("; ".join(report["settings"]["emulated"]) or "nothing")]
    lines += ["", "## Speed, GB/s", "", "| NICs | block KiB | write | read |", "|---|---|---|---|"]
    lines += [f"| {row['nics']} | {row['block'] >> 10} | {row['write']:.2f} | {row['read']:.2f} |" for row in report["sweep"]]
    lines += ["", "Published by others, writes: " + ", ".join(f"{name}: {value}" for name, value in PUBLISHED.items())]
    first = report["first_transfer"]
    lines += ["", "## First transfer of 4 KiB, ms", "", ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} {value:.2f}" for name, value in first.items())]
    death = report["peer_death"]
    lines += ["", "## A killed target", "", f"transfers failed after {death['seconds']:.2f} s ({death['error']}); successor "
              f"{'reached' if death['successor_reached'] else 'NOT reached'}", "", "## By hand", "",
              "- [ ] a NIC taken down during a sweep: speed of the others, and back within 10 s of healing",
              "- [ ] `--register-gib` beyond what the NICs have page entries for: a clear error above, and what was there still works",
              "- GPU memory near and far: not supported yet"]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="be the target (used by the script itself)")
    parser.add_argument("--protocol", default="fabric:tcp")
    parser.add_argument("--host", default="127.0.0.1", help="our address")
    parser.add_argument("--nodes", default="", help="source addresses of our rails, where there are no devices (tcp)")
    parser.add_argument("--remote", default="", help='how to start a command on the other host: "ssh host2"')
    parser.add_argument("--remote-host", default="", help="the other host's address")
    parser.add_argument("--remote-nodes", default="")
    parser.add_argument("--remote-python", default="python3")
    parser.add_argument("--remote-file", default=str(Path(__file__).resolve()), help="where this file is there")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--register-gib", type=float, default=4.0, help="the largest buffer to try")
    parser.add_argument("--report", default=str(Path(tempfile.gettempdir()) / "fabric_check"), help="file name without ending")
    arguments = parser.parse_args()
    if not arguments.remote:
        arguments.remote_host = arguments.remote_host or arguments.host
        arguments.remote_nodes = arguments.remote_nodes or arguments.nodes
    elif not arguments.remote_host:
        parser.error("--remote needs --remote-host")
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.serve:
        return serve()
    report: dict[str, Any] = {"protocol": arguments.protocol, "machine": platform.platform(), "cpus": os.cpu_count(),
                              "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    print("settings", flush=True)
    report["settings"] = settings(arguments)
    print("\n".join(f"  {line}" for line in report["settings"]["lines"]), flush=True)
    print("registration", flush=True)
    engine = open_engine(own_options(arguments))
    report["registration"] = registration(engine, int(arguments.register_gib * GiB))
    engine.close()
    report["exhaustion"] = exhaustion(arguments, int(arguments.register_gib * GiB))
    print("sweep", flush=True)
    report["sweep"] = sweep(arguments, report["settings"]["nics"])
    print("first transfer", flush=True)
    report["first_transfer"] = first_transfer(arguments)
    print("a killed target", flush=True)
    report["peer_death"] = peer_death(arguments)
    Path(arguments.report + ".json").write_text(json.dumps(report, indent=2) + "\n")
    Path(arguments.report + ".md").write_text(as_markdown(report))
    print(as_markdown(report))
    print(f"written to {arguments.report}.md and .json")


if __name__ == "__main__":
    main()
