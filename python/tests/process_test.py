# SPDX-License-Identifier: Apache-2.0
"""Engines and the life of a process: fork, and the end of the interpreter at the worst moments."""

import signal

import pytest

from helpers import PATHS, Peer, run_python

EXIT_BOUND_S = 1.0  # against hangs; the figure itself is printed

START = """
import os, sys, threading, time
import numpy as np
from mooncake.engine import TransferEngine, TransferOpcode
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0, engine.last_error()
memory = np.zeros(16 << 20, np.uint8)
address = memory.ctypes.data
assert engine.register_memory(address, memory.size) == 0
me = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.transfer_sync_write(me, address, address + 4096, 16) == 0
"""

FORK = START + """
plan = engine.prepare(me, [address], [address + 4096], [16])
child = os.fork()
if child == 0:
    assert engine.transfer_sync_write(me, address, address + 4096, 16) == -1
    assert engine.batch_transfer_async_write(me, [address], [address + 4096], [16]) == 0
    assert engine.register_memory(address, 16) == -1 and engine.unregister_memory(address) == -1
    assert engine.allocate_managed_buffer(16) == 0
    assert engine.get_first_buffer_address(me) == 0 and engine.send_probe(me) == -1
    assert plan.write() == -1 and plan.submit_write() == 0
    assert "fork" in engine.last_error() or "parent" in engine.last_error()
    try:
        engine.get_rpc_port()
        sys.exit(3)
    except RuntimeError:
        pass
    engine.close()
    if sys.argv[1] == "again":
        own = TransferEngine()
        assert own.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
        here = f"127.0.0.1:{own.get_rpc_port()}"
        assert own.register_memory(address, memory.size) == 0
        assert own.transfer_sync_write(here, address, address + 4096, 16) == 0
    if sys.argv[1] == "exit":
        os._exit(0)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert engine.transfer_sync_write(me, address, address + 4096, 16) == 0 and plan.write() == 0
"""


@pytest.mark.parametrize("child", ["plain", "exit", "again"])
def test_forked_child_is_refused_ends_cleanly_and_leaves_the_parent_alone(child):
    run_python(FORK, child)


def test_fork_while_other_threads_are_inside_calls():
    run_python(START + """
stop = False
def work(base):
    while not stop:
        assert engine.batch_transfer_sync_write(me, [base] * 100, [base + 4096] * 100, [64] * 100) == 0
        assert engine.allocate_managed_buffer(8192) != 0
threads = [threading.Thread(target=work, args=(address + i * 65536,)) for i in range(4)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        assert engine.allocate_managed_buffer(8192) == 0
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads: thread.join()
""")


def test_multiprocessing_by_fork_and_by_spawn():
    run_python("""
import multiprocessing, sys
from mooncake.engine import TransferEngine

def work(queue):
    engine = TransferEngine()
    queue.put(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""))

if __name__ == "__main__":
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    assert queue.get(timeout=30) == 0
    process.join()
    assert process.exitcode == 0
""")


# ---- the end of the interpreter

TELL = """
print("last line", time.time(), flush=True)
"""

ENDINGS = {
    "an engine alive": "",
    "an engine closed": "engine.close()",
    "an engine in a reference cycle": "cycle = [engine]; cycle.append(cycle); del engine",
    "a handle on the inner engine": "inner = engine.get_engine(); del engine",
    "managed buffers": "assert engine.allocate_managed_buffer(1 << 20)",
    "batches nobody asked after": "ids = [engine.transfer_submit_write(me, address, address + 4096, 1 << 20) for _ in range(100)]",
    "daemon threads inside calls": """
def work(base):
    while True:
        engine.batch_transfer_sync_write(me, [base] * 100, [base + 4096] * 100, [64] * 100)
for i in range(8): threading.Thread(target=work, args=(address + i * 65536,), daemon=True).start()
""",
    "daemon threads registering": """
def work(base):
    while True:
        engine.register_memory(base, 4096)
        engine.unregister_memory(base)
others = [np.zeros(4096, np.uint8) for _ in range(4)]
for o in others: threading.Thread(target=work, args=(o.ctypes.data,), daemon=True).start()
""",
    "a daemon thread making engines": """
def work():
    while True:
        TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "")
threading.Thread(target=work, daemon=True).start()
""",
    "calls from an exit function": """
import atexit
atexit.register(lambda: engine.transfer_sync_write(me, address, address + 4096, 16))
""",
    "an event loop thread": """
import asyncio
async def forever():
    while True:
        await engine.transfer_async(me, [address], [address + 4096], [64], TransferOpcode.Write)
threading.Thread(target=lambda: asyncio.run(forever()), daemon=True).start()
""",
}


def exit_seconds(code: str, *arguments: str, env: dict | None = None) -> float:
    """From the script's last line to the end of the process."""
    import time

    done = run_python(code + TELL, *arguments, env=env)
    return time.time() - float(done.stdout.split()[-1])


@pytest.mark.parametrize("ending", ENDINGS)
def test_interpreter_ends_cleanly_with(ending):
    seconds = exit_seconds(START + ENDINGS[ending])
    print(f"exit with {ending}: {seconds * 1e3:.0f} ms")
    assert seconds < EXIT_BOUND_S


@pytest.mark.parametrize("ending", ["daemon threads inside calls", "an event loop thread", "daemon threads registering"])
def test_interpreter_ends_cleanly_every_time_with(ending):
    for _ in range(15):
        run_python(START + ENDINGS[ending])


STALLED = START + """
peer, peer_address, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
assert engine.transfer_sync_write(peer, address, peer_address, 16) == 0
os.kill(pid, 19)
def work():
    while True:
        engine.transfer_sync_read(peer, address, peer_address, 8 << 20)
for i in range(4): threading.Thread(target=work, daemon=True).start()
assert engine.batch_transfer_async_write(peer, [address], [peer_address], [8 << 20]) != 0
"""


def test_interpreter_ends_cleanly_in_the_middle_of_stalled_transfers():
    env, managed = PATHS["tcp"]
    peer = Peer(8 << 20, managed=managed, env=env)
    try:
        seconds = exit_seconds(STALLED, peer.name, str(peer.address), str(peer.process.pid), env=env)
        print(f"exit in the middle of stalled transfers: {seconds * 1e3:.0f} ms")
        assert seconds < EXIT_BOUND_S
    finally:
        peer.process.send_signal(signal.SIGCONT)
        peer.close()


def test_a_subinterpreter_is_refused_and_its_end_harms_nobody():
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
for module in ("engine", "store"):
    other = interpreters.create()
    interpreters.run_string(other, '''
try:
    import mooncake.%s
    print("taken")
except ImportError as refusal:
    print("main interpreter" in str(refusal))
''' % module)
    interpreters.destroy(other)
address = engine.allocate_managed_buffer(4096)
print(address != 0, engine.free_managed_buffer(address, 4096))
"""
    done = run_python(code)
    assert done.stdout.split() == ["True", "True", "True", "0"], done.stderr
