#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a request trace against a real pool as fast as it goes: a master, a node that lends BLOCKS blocks, and a client, three processes.

    bench/trace_replay.py TRACE.jsonl... --blocks 10000

Every block read is compared with what was put. Ends with 1 if a byte was wrong, a put was refused, or the hit ratio is below that of an ideal LRU
of the same size.
"""

import argparse
import os
import sys
import time

from mooncake._replay import Player, plain_lru, quantile_us, read_trace
from pool import Pool

KiB = 1024


def replay(path: str, arguments: argparse.Namespace) -> bool:
    requests = list(read_trace(path, arguments.requests))
    with Pool(arguments.blocks * arguments.block_bytes, arguments.master_args.split()) as pool:
        store = pool.client(arguments.protocol)
        player = Player(store, arguments.block_bytes)
        start = time.perf_counter()
        for blocks in requests:
            player.play(blocks)
        seconds = time.perf_counter() - start
        player.close()
        store.close()
    tally, ideal = player.tally, plain_lru(requests, arguments.blocks)
    moved = (tally.hit + tally.put) * arguments.block_bytes
    good = tally.wrong == 0 and tally.refused == 0 and tally.hit_ratio >= ideal
    print(f"{os.path.basename(path)}: {tally.requests} requests, {tally.asked} blocks of {arguments.block_bytes // KiB} KiB, pool of {arguments.blocks}\n"
          f"  hit {tally.hit_ratio:.2%} (plain LRU {ideal:.2%}), puts {tally.put} refused {tally.refused}, lost {tally.lost}, wrong {tally.wrong}\n"
          f"  {seconds:.1f} s, {tally.asked / seconds:,.0f} blocks/s, {moved / seconds / 1e9:.2f} GB/s; batch get p50 {quantile_us(tally.get_ns, 0.5):.0f} us"
          f" p99 {quantile_us(tally.get_ns, 0.99):.0f} us, put p50 {quantile_us(tally.put_ns, 0.5):.0f} us p99 {quantile_us(tally.put_ns, 0.99):.0f} us"
          f"{'' if good else '   <-- not good'}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--block-bytes", type=int, default=64 * KiB)
    parser.add_argument("--requests", type=int, default=0, help="only so many; 0: all")
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--master-args", default="")
    arguments = parser.parse_args()
    return 0 if all([replay(path, arguments) for path in arguments.traces]) else 1


if __name__ == "__main__":
    sys.exit(main())
