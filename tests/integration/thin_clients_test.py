# SPDX-License-Identifier: Apache-2.0
"""Thin clients of one node, as processes: they share values and nothing else, die, and see the node die."""

from __future__ import annotations

import array
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mooncake
import pytest
from mooncake.store import MooncakeDistributedStore

BUILT = Path(__file__).resolve().parents[2] / "build" / "dev" / "bin"
WORKER = Path(__file__).with_name("thin_worker.py")
PATIENCE_S = 60  # against hangs only
MiB = 1 << 20
CLIENTS = 16


def program(name: str) -> str:
    """What was built last here, or what is installed."""
    return str(BUILT / name if (BUILT / name).exists() else Path(mooncake.__file__).parent / "bin" / name)


def eventually(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def free_name() -> int:
    """A port whose local socket nobody has; the number is only a name."""
    while True:
        port = random.randrange(1024, 65536)
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            probe.bind(f"\0mooncake_client_{port}.sock")
            return port
        except OSError:
            continue
        finally:
            probe.close()


class Pool:
    """A master, and a node that serves thin clients."""

    def __init__(self) -> None:
        self.master = subprocess.Popen([program("mooncake_master"), "--port=0", "--metrics_port=0", "--rpc_address=127.0.0.1",
                                        "--metrics_host=127.0.0.1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.master.stdout
        for line in self.master.stdout:
            if "Master service started on port" in line:
                self.address = f"127.0.0.1:{int(line.rsplit('port', 1)[1].split()[0].rstrip('.,'))}"
                break
        self.port = free_name()
        self.start_node()

    def start_node(self) -> None:
        self.node = subprocess.Popen([program("mooncake_client"), f"--port={self.port}", "--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE",
                                      f"--master_server_address={self.address}", "--global_segment_size=64MB"], stdout=subprocess.PIPE, text=True)
        assert self.node.stdout and "lends" in self.node.stdout.readline()

    def shared_with_node(self) -> int:
        """Pieces of memory of clients that the node has mapped."""
        return Path(f"/proc/{self.node.pid}/maps").read_text().count("memfd:mooncake_host_memory")

    def node_threads(self) -> int:
        tasks = Path(f"/proc/{self.node.pid}/task")
        return sum((task / "comm").read_text().strip() == "mc-bridge" for task in tasks.iterdir())

    def close(self) -> None:
        for process in (self.node, self.master):
            process.terminate()
            process.wait(PATIENCE_S)


class Client:
    def __init__(self, pool: Pool, name: str, buffer_bytes: int = MiB, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen([sys.executable, str(WORKER), str(pool.port), str(buffer_bytes), name], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | (env or {}))
        self.name = name

    def ready(self) -> None:
        assert self.answer() == [0, 0], "set up, without threads"

    def ask(self, *call: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def call(self, *call: Any) -> Any:
        self.ask(*call)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def clients(pool: Pool) -> Iterator[list[Client]]:
    all_of_them = [Client(pool, f"client{number}") for number in range(CLIENTS)]
    for client in all_of_them:
        client.ready()
    yield all_of_them
    for client in all_of_them:
        client.close()


def test_sixteen_clients_share_all_values(pool: Pool, clients: list[Client]) -> None:
    for client in clients:
        client.ask("share", MiB)
    assert [client.answer() for client in clients] == [[0, 1]] * CLIENTS
    keys = [f"{client.name}-{number}" for client in clients for number in range(4)]
    for number, client in enumerate(clients):
        client.ask("put", keys[4 * number:4 * number + 4], 30_000)
    assert [client.answer() for client in clients] == [[0] * 4] * CLIENTS
    for client in clients:
        client.ask("get", keys, 30_000)
    assert all(all(client.answer()) for client in clients)
    for client in clients:
        client.ask("get_into", keys, 30_000)
    assert all(all(client.answer()) for client in clients)
    assert pool.shared_with_node() == 2 * CLIENTS, "working memory and the memory above, of each"
    assert pool.node_threads() <= 17


def test_a_client_that_is_killed_leaves_nothing_behind(pool: Pool, clients: list[Client]) -> None:
    before = pool.shared_with_node()
    doomed = clients[0]
    assert doomed.call("share", 64 * MiB) == [0, 1]
    assert pool.shared_with_node() == before + 1
    doomed.ask("load", 60, 2)  # it dies in the middle of calls
    assert eventually(lambda: clients[1].call("get", ["client0-0-0"], 1000) == [True])
    doomed.process.kill()
    assert eventually(lambda: pool.shared_with_node() == before - 1)
    assert clients[1].call("put", ["later"], 1000) == [0]
    for client in clients[1:]:
        client.process.kill()
    assert eventually(lambda: pool.shared_with_node() == 0)


def test_the_end_of_a_client_is_seen_while_all_others_wait_for_the_master(pool: Pool, clients: list[Client]) -> None:
    extra = [Client(pool, f"extra{number}") for number in range(4)]
    for client in extra:
        client.ready()
    assert extra[0].call("share", MiB) == [0, 1]
    before = pool.shared_with_node()
    pool.master.send_signal(signal.SIGSTOP)
    try:
        for client in (*clients, *extra[1:]):  # more than the node has threads
            client.ask("exist", [f"unknown to the node: {client.name}"])
        assert eventually(lambda: pool.node_threads() == 17)
        extra[0].process.kill()
        assert eventually(lambda: pool.shared_with_node() == before - 2, 20), "the master holds up those who asked, nobody else"
        extra[1].process.kill()  # its question waits
    finally:
        pool.master.send_signal(signal.SIGCONT)
    assert [client.answer() for client in (*clients, *extra[2:])] == [[0]] * (CLIENTS + 2)
    assert eventually(lambda: pool.shared_with_node() == before - 3)
    for client in extra:
        client.close()


def test_a_client_that_stands_still_holds_up_nobody(pool: Pool, clients: list[Client]) -> None:
    clients[0].call("share", MiB)
    clients[0].ask("load", 60, 4)
    assert eventually(lambda: clients[1].call("get", ["client0-0-0"], 1000) == [True])
    clients[0].process.send_signal(signal.SIGSTOP)
    for client in clients[1:]:
        assert client.call("put", [client.name], 1000) == [0]
    clients[0].process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_is_restarted_under_load(pool: Pool, clients: list[Client], how: signal.Signals) -> None:
    seconds = 8
    for client in clients:
        client.ask("share", MiB)
    assert [client.answer() for client in clients] == [[0, 1]] * CLIENTS
    for client in clients:
        client.ask("load", seconds, 2)
    watcher = MooncakeDistributedStore()
    assert watcher.setup_dummy(0, MiB, f"127.0.0.1:{pool.port}") == 0
    assert eventually(lambda: all(watcher.is_exist(f"{client.name}-1-0") == 1 for client in clients))
    pool.node.send_signal(how)
    pool.node.wait(PATIENCE_S)
    pool.start_node()
    seen = [client.answer() for client in clients]
    for result in seen:
        assert result["wrong"] == 0, seen
        assert result["right"] > 0 and result["after"] > 0, seen
        assert result["longest_s"] < 30, seen
    for client in clients:  # all memory was handed over again
        assert client.call("put", [f"new-{client.name}"], 5000) == [0]
        assert client.call("get_into", [f"new-{client.name}"], 5000) == [True]
    watcher.close()


def test_without_a_node_calls_end(pool: Pool) -> None:
    client = Client(pool, "alone", env={"MC_BRIDGE_RECONNECT_WAIT_MS": "300"})
    client.ready()
    assert client.call("put", ["k"], 1000) == [0]
    pool.node.kill()
    pool.node.wait()
    assert client.call("put", ["k2"], 1000) == [-900]
    assert client.call("get", ["k"], 1000) == [False]
    pool.start_node()
    assert client.call("put", ["k3"], 1000) == [0]
    client.close()


def test_garbage_from_processes_of_this_host_does_no_harm(pool: Pool) -> None:
    client = Client(pool, "honest")
    client.ready()
    assert client.call("put", ["k"], 1000) == [0]
    random_bytes = random.Random(4711)
    head = struct.Struct("<IHHQQQQQ")
    memory = os.memfd_create("loose")
    os.ftruncate(memory, 4096)
    for turn in range(300):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(f"\0mooncake_client_{pool.port}.sock")
        try:
            for _ in range(random_bytes.randrange(1, 4)):
                length = random_bytes.choice([0, 8, 40, 300, 60_000])
                body = random_bytes.randbytes(length)
                named = random_bytes.choice([length, length, 0, 2**40, 100_000])
                packet = head.pack(0x6D636272, 1, random_bytes.randrange(0, 28), turn, 0, 0, 0, named) + body
                if turn % 3 == 0:
                    packet = random_bytes.randbytes(random_bytes.randrange(1, 200))
                files = array.array("i", [memory] * random_bytes.randrange(0, 6)) if turn % 2 else array.array("i")
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if files else []
                line.sendmsg([packet], ancillary)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            line.close()
    os.close(memory)
    assert client.call("get", ["k"], 1000) == [True]
    assert pool.node.poll() is None
    assert eventually(lambda: pool.shared_with_node() == 1)
    descriptors = len(os.listdir(f"/proc/{pool.node.pid}/fd"))
    assert descriptors < 100, "none of those files was kept"
    client.close()
