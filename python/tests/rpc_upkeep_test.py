# SPDX-License-Identifier: Apache-2.0
"""What the RPC helper leaves behind, and what its log does to the interpreter."""

import errno
import queue
import selectors
import threading
import weakref

import pytest

from helpers import PATIENCE_S, run_python
from mooncake import _rpc_server
from mooncake.engine import RpcInterface, create_rpc_client

LOG_READ_BY_OURSELVES = """
import os, threading
from mooncake.engine import RpcInterface

reading, writing = os.pipe()
os.dup2(writing, 2)  # as notebooks do


def read():
    while os.read(reading, 1000):
        pass


threading.Thread(target=read, daemon=True).start()


def fail(_):
    raise ValueError("x" * 200_000)


receiver, sender = RpcInterface(), RpcInterface()
assert receiver.initialize("127.0.0.1:0") and sender.initialize_client()
receiver.set_data_receive_callback(fail)
assert receiver.start_server_async()
assert [sender.send_data(f"127.0.0.1:{receiver.port}", b"x") for _ in range(20)] == [0] * 20
receiver.stop_server()
print("ok")
os._exit(0)
"""


PROMISES = """
import gc, os, socket
from mooncake._rpc_frames import data_header
from mooncake.engine import RpcInterface

gc.disable()  # as servers do
receiver = RpcInterface()
assert receiver.initialize("127.0.0.1:0") and receiver.start_server_async()
size = lambda: int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
before = size()
number = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (4 << 30) + 2  # together more than the machine has
assert number < 1000
promises = [socket.create_connection(("127.0.0.1", receiver.port)) for _ in range(number)]
for promise in promises:
    promise.sendall(data_header(4 << 30) + b"x")
while size() < before + number * (4 << 30):
    os.sched_yield()
child = os.fork()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
for promise in promises:
    promise.close()
while size() >= before + (4 << 30):
    os.sched_yield()
print("given back")
"""


def test_what_strangers_promise_neither_stays_nor_forbids_a_fork():
    assert run_python(PROMISES).stdout == "7\ngiven back\n"


def test_a_log_that_this_interpreter_reads_itself_does_not_stop_it():
    assert run_python(LOG_READ_BY_OURSELVES).stdout == "ok\n"


def test_initializing_again_and_again_leaves_nothing_behind():
    rpc = RpcInterface()
    before = len(weakref.finalize._registry)
    for _ in range(10):
        assert rpc.initialize_client()
    assert len(weakref.finalize._registry) <= before + 1


@pytest.fixture
def receiver():
    rpc = RpcInterface()
    assert rpc.initialize("127.0.0.1:0")
    yield rpc
    rpc.stop_server()


def test_a_worker_that_cannot_be_started_costs_one_message_and_not_the_server(receiver, monkeypatch):
    got, go_on = queue.Queue(), threading.Event()

    def take(received):
        got.put(received["data"])
        assert go_on.wait(PATIENCE_S)

    receiver.set_data_receive_callback(take)
    assert receiver.start_server_async()
    address = f"127.0.0.1:{receiver.port}"
    codes = []
    first = threading.Thread(target=lambda: codes.append(create_rpc_client().send_data(address, b"first")))
    first.start()
    assert got.get(timeout=PATIENCE_S) == b"first"
    start = threading.Thread.start

    def start_no_worker(thread):
        if thread.name.startswith("mooncake-rpc"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_no_worker)
        assert create_rpc_client().send_data(address, b"second") != 0
    go_on.set()
    first.join(PATIENCE_S)
    assert codes == [0]
    for _ in range(20):  # the worker comes to what it was not given, too
        assert create_rpc_client().send_data(address, b"third") == 0
    assert [got.get(timeout=PATIENCE_S) for _ in range(20)] == [b"third"] * 20


@pytest.mark.parametrize("missing", ["memory", "descriptors"])
def test_a_connection_that_there_is_no_room_for_does_not_end_the_server(receiver, monkeypatch, missing):
    assert receiver.start_server_async()
    address, failed = f"127.0.0.1:{receiver.port}", threading.Event()

    def no_memory(*_):
        failed.set()
        raise MemoryError

    def no_room(*_):
        failed.set()
        raise OSError(errno.ENOSPC, "no more descriptors can be watched")

    with monkeypatch.context() as patch:
        if missing == "memory":
            patch.setattr(_rpc_server, "_Connection", no_memory)
        else:
            patch.setattr(selectors.DefaultSelector, "register", no_room)
        assert create_rpc_client().send_data(address, b"lost") != 0
        assert failed.is_set()
    assert create_rpc_client().send_data(address, b"there") == 0


def test_a_server_outlives_what_nobody_has_thought_of(receiver, monkeypatch):
    assert receiver.start_server_async()
    address, failed = f"127.0.0.1:{receiver.port}", threading.Event()

    def fail(*_):
        failed.set()
        raise ValueError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(_rpc_server, "_Connection", fail)
        assert create_rpc_client().send_data(address, b"lost") != 0
        assert failed.is_set()
    assert create_rpc_client().send_data(address, b"there") == 0
