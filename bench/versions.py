#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the installed package with another version of it, installed for another interpreter, in one run.

Both answer the questions of the rows of bench/run.py in turn, many short times, the first of each pair by lot, so that what the machine does meanwhile
meets both alike. Where memory lies is a matter of luck that lasts as long as a process, so there are new ones now and then. The median of the ratios
is printed, and how far the middle half of them reaches.
"""

import argparse
import random
import statistics
import sys
from contextlib import ExitStack

from noise import Noise
from run import NOISE_MAX, Initiators, Row, all_rows


Found = dict[str, list[tuple[float, float]]]


def compare(rows: list[Row], other: str, seconds: float, rounds: int, found: Found) -> None:
    """Adds by row, round by round: how busy others were, and how many times as good the installed version was."""
    with ExitStack() as stack:
        pids: list[int] = []
        versions = (Initiators(stack, pids), Initiators(stack, pids, other))
        for row in rows:
            for version in versions:
                version[row.pair].ask(**row.ask, seconds=seconds)  # warm
        for _ in range(rounds):
            for row in rows:
                order = random.sample(range(2), 2)
                values = [0.0, 0.0]
                with Noise(pids) as noise:
                    for index in order:
                        values[index] = versions[index][row.pair].ask(**row.ask, seconds=seconds)[row.key]
                ratio = values[0] / values[1] if row.more_is_better else values[1] / values[0]
                found[row.name].append((noise.share, ratio))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="an interpreter that has the other version")
    parser.add_argument("--seconds", type=float, default=0.1, help="per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="with the same processes")
    parser.add_argument("--processes", type=int, default=7, help="how often there are new ones")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    rows = [row for row in all_rows() if arguments.only in row.name and not row.limit_key and row.key != "cpu"]
    found: Found = {row.name: [] for row in rows}
    for _ in range(arguments.processes):
        compare(rows, arguments.python, arguments.seconds, arguments.rounds, found)
    print(f"{'as fast as the other version, times':44} {'median':>7} {'middle half':>13}")
    for name, pairs in found.items():
        ratios = [ratio for share, ratio in pairs if share <= NOISE_MAX] or [ratio for _, ratio in pairs]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        print(f"{name:44} {statistics.median(ratios):7.2f} {low:6.2f}-{high:.2f}  ({len(ratios)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
