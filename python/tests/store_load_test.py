# SPDX-License-Identifier: Apache-2.0
"""Pools under more load than they can take, and what becomes of every single call; real processes, everything that is read is compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter

import pytest

from helpers import HERE, PATIENCE_S
from mooncake.store import ReplicateConfig
from store_helpers import MiB, Master, open_store, random_bytes

SECONDS = float(os.environ.get("MC_TEST_LOAD_SECONDS", "4"))  # a minute or more to be thorough


class Process:
    """store_load.py, begun together with others."""

    def __init__(self, **setup: object) -> None:
        self.process = subprocess.Popen([sys.executable, "store_load.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE, text=True)
        self.say(json.dumps(setup))

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> Process:
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def ledger(self) -> Counter:
        return Counter(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0


def run_load(master: Master, *setups: dict, keys: int) -> list[Counter]:
    processes = [Process(master=master.address, seed=seed, keys=keys, seconds=SECONDS, **setup) for seed, setup in enumerate(setups)]
    for process in processes:
        process.__enter__()
    try:
        for process in processes:
            process.say("go")
        ledgers = [process.ledger() for process in processes]
        for process in processes:
            process.end()
        return ledgers
    finally:
        for process in processes:
            process.__exit__()


def outcomes(ledgers: list[Counter], call: str) -> Counter:
    total: Counter = Counter()
    for ledger in ledgers:
        for name, count in ledger.items():
            if name.startswith(call + " "):
                total[name[len(call) + 1:]] += count
    return total


@pytest.fixture
def short_master():
    process = Master("--default_kv_lease_ttl=2000")
    yield process
    process.stop()


def test_every_put_under_overload_has_a_definite_end(short_master):
    """Twice as much as fits is written, by writers that meet each other at the same keys, while everything is read and probed."""
    pool = 2 * 32 * MiB
    writer = {"segment": 32 * MiB, "calls": ["put", "put", "get"]}
    ledgers = run_load(short_master, writer, writer, {"segment": 0, "calls": ["probe", "get"]}, keys=2 * pool // (128 << 10))
    puts, gets, probes = (outcomes(ledgers, call) for call in ("put", "get", "exist"))
    print(f"{SECONDS} s: puts {dict(puts)}, gets {dict(gets)}, probes {dict(probes)}")
    assert set(puts) <= {"0", "-200", "-703"}  # stored; refused; somebody else is writing it
    assert puts["0"] > 100 and puts["0"] > puts["-200"] + puts["-703"]  # a batch counts as refused if one of its values was
    assert set(gets) <= {"value", "miss"} and gets["value"] > 100
    assert set(probes) <= {"0", "1"}


def test_no_put_is_refused_while_every_key_of_a_full_pool_is_probed(short_master):
    pool = 32 * MiB
    lender = open_store(short_master.address, segment=pool)
    for number in range(2 * pool // (128 << 10)):  # more than fits
        assert lender.put(f"k{number}", random_bytes(128 << 10, number)) == 0
    ledgers = run_load(short_master, {"segment": 0, "calls": ["put"]}, {"segment": 0, "calls": ["probe"]}, {"segment": 0, "calls": ["probe"]},
                       keys=2 * pool // (128 << 10))
    puts, probes = outcomes(ledgers, "put"), outcomes(ledgers, "exist")
    print(f"{SECONDS} s: puts {dict(puts)}, probes {dict(probes)}")
    assert set(puts) == {"0"} and puts["0"] > 100
    assert probes["1"] > 1000
    assert lender.close() == 0


WRITER = """
import json, sys
sys.path.insert(0, '.')
from store_helpers import *
store = open_store(sys.argv[1], segment=0)
print('ready', flush=True)
sys.stdin.readline()
print(json.dumps([store.put(f'k{i}', bytes([int(sys.argv[2])]) * (300_000 + i)) for i in range(100)]), flush=True)
store.close()
"""


def test_two_processes_that_write_the_same_keys_leave_whole_values(make_store, master):
    store = make_store()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, master.address, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                cwd=HERE, text=True) for number in (1, 2)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert set(json.loads(writer.stdout.readline())) == {0}
        assert writer.wait(PATIENCE_S) == 0
    seen = set()
    for i in range(100):
        value = store.get(f"k{i}")
        assert len(value) == 300_000 + i and len(set(value)) == 1
        seen.add(value[0])
    assert seen <= {1, 2}


def test_calls_in_flight_end_when_the_store_is_closed(make_store, master):
    """Batches of large values over many threads, closed in the middle; another process reads on."""
    reader, store = make_store(), open_store(master.address)
    assert reader.put("other", b"v") == 0
    value, codes, entered = bytes(2 * MiB), [], threading.Barrier(9)

    def work(number: int) -> None:
        entered.wait(PATIENCE_S)
        for i in range(1000):
            code = store.put_batch([f"{number}/{i}/{n}" for n in range(4)], [value] * 4)
            if code not in (0, -200):
                codes.append(code)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    entered.wait(PATIENCE_S)
    began = time.monotonic()
    assert store.close() == 0
    assert time.monotonic() - began < 20
    [thread.join(PATIENCE_S) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    assert set(codes) <= {-600, -1010}  # closed
    assert reader.get("other") in (b"v", b"") and reader.put("more", b"w") == 0 and reader.get("more") == b"w"


# ---- draining


def ask(port: int, path: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def test_drained_node_can_go_without_a_loss(short_master):
    port = short_master.admin_port
    leaving, staying, reader = open_store(short_master.address), open_store(short_master.address), open_store(short_master.address, segment=0)
    there = ReplicateConfig()
    there.preferred_segment = leaving.get_hostname()
    values = {f"k{i}": random_bytes(50_000 + i, i) for i in range(200)}
    for key, value in values.items():
        assert reader.put(key, value, there) == 0
    job = ask(port, "/api/v1/drain_jobs", {"segments": [leaving.get_hostname()], "max_concurrency": 8})
    assert job["success"]
    end = time.monotonic() + PATIENCE_S
    while (state := ask(port, f"/api/v1/drain_jobs/query?job_id={job['job_id']}"))["status_name"] == "RUNNING":
        assert reader.get("k7") == values["k7"]  # all the while
        assert time.monotonic() < end, state
    assert state["status_name"] == "SUCCEEDED" and state["succeeded_units"] == 200 and state["migrated_bytes"] >= sum(map(len, values.values()))
    assert reader.put("new", b"v") == 0
    assert leaving.close() == 0
    for key, value in values.items():
        assert reader.get(key) == value
    assert reader.get("new") == b"v"
    for store in (staying, reader):
        assert store.close() == 0
