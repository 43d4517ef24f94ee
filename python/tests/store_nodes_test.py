# SPDX-License-Identifier: Apache-2.0
"""Nodes as processes of their own that are killed, stopped, kept busy and replaced; everything that is read is compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from helpers import HERE, PATIENCE_S
from mooncake.store import ReplicateConfig
from store_helpers import MiB, Master, open_store, random_bytes

NODE = """
import ctypes, sys
sys.path.insert(0, '.')
from store_helpers import *
store = open_store(sys.argv[1], segment=int(sys.argv[2]))
print(store.get_hostname(), flush=True)
for line in sys.stdin:
    if line == 'keep the interpreter\\n':
        print('keeping', flush=True)
        ctypes.PyDLL(None).sleep(4)  # with its lock
        print('kept', flush=True)
store.close()
"""


class Node:
    def __init__(self, master: Master, segment: int = 32 * MiB) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", NODE, master.address, str(segment)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, cwd=HERE, text=True)

    def ready(self) -> Node:
        self.name = self.process.stdout.readline().strip()
        assert self.name
        return self

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def quick_master():
    process = Master("--client_ttl=2", "--default_kv_lease_ttl=1000")
    yield process
    process.stop()


@pytest.fixture
def make_nodes(quick_master):
    made: list[Node] = []

    def make(count: int) -> list[Node]:
        nodes = [Node(quick_master) for _ in range(count)]
        made.extend(nodes)
        return [node.ready() for node in nodes]

    yield make
    for node in made:
        if node.process.poll() is None:
            node.kill()


def segments(master: Master) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{master.admin_port}/get_all_segments", timeout=PATIENCE_S) as answer:
        return set(answer.read().decode().split())


def wait_for(what, why: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.01)


def test_values_of_a_killed_node_soon_do_not_exist_however_long_silence_is_borne():
    master = Master("--client_ttl=3600")
    nodes = [Node(master).ready() for _ in range(2)]
    store = open_store(master.address, segment=0)
    keys = [f"k{i}" for i in range(100)]
    assert store.put_batch(keys, [b"v"] * 100) == 0
    nodes[0].kill()
    asking = open_store(master.address, segment=0)
    wait_for(lambda: 0 in asking.batch_is_exist(keys), "its end was noticed")
    left = asking.batch_is_exist(keys)
    assert sum(left) > 0 and asking.get_batch(keys) == [b"v" if there else b"" for there in left]
    nodes[1].kill()
    for one in (store, asking):
        assert one.close() == 0
    master.stop()


def test_five_nodes_of_which_two_are_lost(quick_master, make_nodes):
    nodes = make_nodes(5)
    store = open_store(quick_master.address, segment=0)
    twice = ReplicateConfig()
    twice.replica_num = 2
    single = {f"single/{i}": random_bytes(10_000 + i, i) for i in range(300)}
    double = {f"double/{i}": random_bytes(10_000 + i, 1000 + i) for i in range(300)}
    assert store.put_batch(list(single), list(single.values())) == 0
    assert store.put_batch(list(double), list(double.values()), twice) == 0
    at = {key: descs[0].get_memory_descriptor().buffer_descriptor.transport_endpoint
          for key, descs in store.batch_get_replica_desc(list(single)).items()}
    assert set(at.values()) == {node.name for node in nodes}  # every node has a share

    nodes[0].kill()
    assert store.get_batch(list(double)) == list(double.values())
    gone = {nodes[0].name}
    for key, value in zip(single, store.get_batch(list(single))):
        assert value == (b"" if at[key] in gone else single[key])

    nodes[1].send(signal.SIGSTOP)
    wait_for(lambda: nodes[1].name not in segments(quick_master), "a stopped node is given up")
    gone.add(nodes[1].name)
    assert store.put("while it is stopped", b"v") == 0
    fresh = open_store(quick_master.address, segment=0)  # remembers nothing
    for key, value in zip(single, fresh.get_batch(list(single))):
        assert value == (b"" if at[key] in gone else single[key])

    nodes[1].send(signal.SIGCONT)
    gone.remove(nodes[1].name)
    wait_for(lambda: nodes[1].name in segments(quick_master), "it comes back")
    wait_for(lambda: all(fresh.get(key) == value for key, value in single.items() if at[key] not in gone), "with its values")
    assert store.get("while it is stopped") == b"v"
    for one in (store, fresh):
        assert one.close() == 0


def test_node_whose_interpreter_is_kept_busy_stays_in_the_pool(quick_master, make_nodes):
    """For twice the time after which a silent client is given up."""
    node, = make_nodes(1)
    store = open_store(quick_master.address, segment=0)
    value = random_bytes(100_000)
    assert store.put("k", value) == 0
    node.say("keep the interpreter")
    assert node.process.stdout.readline() == "keeping\n"
    begun = time.monotonic()
    while time.monotonic() - begun < 3.5:
        assert store.get("k") == value
        assert node.name in segments(quick_master)
        time.sleep(0.05)
    assert store.put("l", value) == 0 and store.get("l") == value
    assert node.process.stdout.readline() == "kept\n"
    assert store.close() == 0


def test_nodes_that_die_again_and_again_leave_nothing_behind(quick_master, make_nodes):
    store = open_store(quick_master.address, segment=8 * MiB)

    def live_one_life(number: int) -> None:
        nodes = make_nodes(3)
        for node in nodes:
            there = ReplicateConfig()
            there.preferred_segment = node.name
            assert store.put(f"{number}/{node.name}", b"v" * 10_000, there) == 0
        for node in nodes:
            node.kill()
        wait_for(lambda: segments(quick_master) == {store.get_hostname()}, "dead nodes are given up")

    def open_files() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{quick_master.process.pid}/fd")), len(os.listdir("/proc/self/fd"))

    live_one_life(0)
    before = open_files()
    for number in range(1, 4):
        live_one_life(number)
    wait_for(lambda: all(now <= was + 2 for now, was in zip(open_files(), before)), "connections to the dead are closed")
    with urllib.request.urlopen(f"http://127.0.0.1:{quick_master.admin_port}/metrics", timeout=PATIENCE_S) as answer:
        numbers = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line and line[0] != "#")
    assert numbers["master_active_clients"] == "1" and numbers["master_key_count"] == "0" and numbers["master_allocated_bytes"] == "0"
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    assert store.close() == 0
