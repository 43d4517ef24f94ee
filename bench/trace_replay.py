#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a request trace against a real pool as fast as it goes: a master, a node that lends BLOCKS blocks, and a client, three processes.

    bench/trace_replay.py TRACE.jsonl... --blocks 10000
    bench/trace_replay.py TRACE.jsonl... --blocks 3000 --disk FOLDER --disk-blocks 15000

Every block read is compared with what was put. Ends with 1 if a byte was wrong, a put was refused, or the hit ratio is below that of an ideal LRU
of the same size; with a disk: by more than one point below that of a pool with as much memory as the two have together.
"""

import argparse
import os
import sys
import tempfile
import time

from mooncake._replay import Player, Tally, plain_lru, quantile_us, read_trace
from pool import Pool

KiB = 1024


RECORD = 8 * KiB  # what a record on a disk takes besides its value, at most
SLACK = 1.25  # of a disk: it is cleared from a high watermark down to a low one, 80 % of it


def play(requests: list[list[int]], arguments: argparse.Namespace, blocks: int, disk: str = "") -> tuple[Tally, float]:
    master, env = arguments.master_args.split(), {}
    if disk:
        master += ["--enable_offload", f"--offload_on_evict={arguments.on_evict}", f"--promotion_on_hit={arguments.promote}"]
        env["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(int(arguments.disk_blocks * (arguments.block_bytes + RECORD) * SLACK))
    with Pool(blocks * arguments.block_bytes, master, env=env, disk=disk) as pool:
        store = pool.client(arguments.protocol)
        player = Player(store, arguments.block_bytes)
        start = time.perf_counter()
        for one in requests:
            player.play(one)
        seconds = time.perf_counter() - start
        player.close()
        store.close()
    return player.tally, seconds


def show(title: str, tally: Tally, seconds: float, arguments: argparse.Namespace) -> None:
    moved = (tally.hit + tally.put) * arguments.block_bytes
    print(f"  {title}: hit {tally.hit_ratio:.2%}, puts {tally.put} refused {tally.refused}, lost {tally.lost}, wrong {tally.wrong}\n"
          f"    {seconds:.1f} s, {tally.asked / seconds:,.0f} blocks/s, {moved / seconds / 1e9:.2f} GB/s; batch get p50 {quantile_us(tally.get_ns, 0.5):.0f} us"
          f" p99 {quantile_us(tally.get_ns, 0.99):.0f} us, put p50 {quantile_us(tally.put_ns, 0.5):.0f} us p99 {quantile_us(tally.put_ns, 0.99):.0f} us",
          flush=True)


def replay(path: str, arguments: argparse.Namespace) -> bool:
    requests = list(read_trace(path, arguments.requests))
    print(f"{os.path.basename(path)}: {len(requests)} requests, blocks of {arguments.block_bytes // KiB} KiB", flush=True)
    if not arguments.disk:
        tally, seconds = play(requests, arguments, arguments.blocks)
        show(f"pool of {arguments.blocks}", tally, seconds, arguments)
        wanted = plain_lru(requests, arguments.blocks)
        print(f"  plain LRU: {wanted:.2%}")
    else:
        with tempfile.TemporaryDirectory(dir=arguments.disk) as folder:
            tally, seconds = play(requests, arguments, arguments.blocks, folder)
        show(f"memory for {arguments.blocks}, disk for {arguments.disk_blocks}", tally, seconds, arguments)
        both = arguments.blocks + arguments.disk_blocks
        memory, memory_seconds = play(requests, arguments, both)
        show(f"memory for {both}", memory, memory_seconds, arguments)
        wanted = memory.hit_ratio - 0.01
    good = tally.wrong == 0 and tally.refused == 0 and tally.hit_ratio >= wanted
    print("  good" if good else "  <-- not good", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--disk", default="", help="a folder: values that leave memory go to a disk there")
    parser.add_argument("--disk-blocks", type=int, default=50_000)
    parser.add_argument("--on-evict", choices=["true", "false"], default="false", help="offload only what would soon leave memory")
    parser.add_argument("--promote", choices=["true", "false"], default="true", help="what is read from a disk comes back to memory")
    parser.add_argument("--block-bytes", type=int, default=64 * KiB)
    parser.add_argument("--requests", type=int, default=0, help="only so many; 0: all")
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--master-args", default="")
    arguments = parser.parse_args()
    return 0 if all([replay(path, arguments) for path in arguments.traces]) else 1


if __name__ == "__main__":
    sys.exit(main())
