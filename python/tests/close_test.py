# SPDX-License-Identifier: Apache-2.0
"""close() and the end of the interpreter are fences: peers that go on writing reach nothing any more."""

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from helpers import HAS_FABRIC, HERE, PATHS, PATIENCE_S
from mooncake.engine import TransferEngine

KiB = 1024
POISON = 0xA5


class Writer:
    """Writes to a peer without a pause, in a thread."""

    def __init__(self, engine, target: str, address: int, length: int) -> None:
        self.succeeded = self.failed = 0
        self._changed = threading.Condition()
        self._over = False
        self._source = np.full(length, 7, np.uint8)
        self._thread = threading.Thread(target=self._run, args=(engine, target, address))
        self._thread.start()

    def _run(self, engine, target: str, address: int) -> None:
        while not self._over:
            code = engine.transfer_sync_write(target, self._source, address)
            with self._changed:
                self.succeeded += code == 0
                self.failed += code != 0
                self._changed.notify_all()

    def wait(self, *, succeeded: int = 0, failed: int = 0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.succeeded >= succeeded and self.failed >= failed, PATIENCE_S)

    def stop(self) -> None:
        self._over = True
        self._thread.join(PATIENCE_S)


def test_nobody_writes_to_memory_of_a_closed_engine(pair):
    writer = Writer(pair.engine, pair.peer.name, pair.peer.address, pair.peer.size)
    try:
        writer.wait(succeeded=3)
        pair.peer.ask("close")
        pair.peer.write(0, bytes([POISON]) * pair.peer.size)
        writer.wait(failed=5)
    finally:
        writer.stop()
    assert pair.peer.read(0, pair.peer.size) == bytes([POISON]) * pair.peer.size
    assert pair.engine.transfer_sync_read(pair.peer.name, pair.local.memory, pair.peer.address, 100) != 0


@pytest.mark.parametrize("leave", [lambda engine: engine.close(), lambda engine: engine.__exit__(None, None, None)], ids=["close", "with"])
@pytest.mark.parametrize("path", [path for path in PATHS if path != "shared memory"])
def test_whoever_closes_beside_another_returns_when_it_is_done(path, leave, monkeypatch, make_local):
    if path == "fabric" and not HAS_FABRIC:
        pytest.skip("libfabric is not installed")
    for name, value in PATHS[path][0].items():
        monkeypatch.setenv(name, value)
    source, closers, part = make_local(), 4, 4 << 20
    for _ in range(5):
        target = make_local(closers * part)
        writer = Writer(source.engine, target.name, target.address, target.memory.size)

        def close(number: int, at_once: threading.Barrier) -> None:
            at_once.wait(PATIENCE_S)
            leave(target.engine)
            target.memory[number * part:(number + 1) * part] = POISON  # ours again

        try:
            writer.wait(succeeded=2)
            at_once = threading.Barrier(closers)
            threads = [threading.Thread(target=close, args=(number, at_once)) for number in range(closers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            writer.wait(failed=3)
        finally:
            writer.stop()
        assert (target.memory == POISON).all()


WRITES_WITHOUT_END = """
import sys
import numpy as np
from mooncake.engine import TransferEngine
name, address, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
source = np.full(length, 7, np.uint8)
assert engine.transfer_sync_write(name, source, address) == 0, engine.last_error()
print("writes", flush=True)
while True:
    engine.transfer_sync_write(name, source, address)
"""


@pytest.fixture
def stopped_inside(monkeypatch):
    """An engine, closed while a writer to its managed memory is stopped inside a copy; an object that it has registered; and that writer."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")  # close() waits as long
    size = 8 << 20
    for _ in range(50):  # until the writer is stopped inside a copy: that is what it does most of the time
        engine, held = TransferEngine(), bytearray(4096)
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
        assert engine.register_memory(held) == 0
        address = engine.allocate_managed_buffer(size)
        writer = subprocess.Popen([sys.executable, "-c", WRITES_WITHOUT_END, f"127.0.0.1:{engine.get_rpc_port()}", str(address), str(size)],
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout.readline() == "writes\n"
            writer.send_signal(signal.SIGSTOP)
            try:
                engine.close()
            except RuntimeError as error:
                yield engine, held, writer, error
                return
            assert "still accesses" not in engine.last_error()
        finally:
            writer.kill()
            writer.communicate()
    pytest.fail("the writer was never stopped inside a copy")


def test_close_says_when_a_process_may_still_write(stopped_inside):
    engine, held, writer, error = stopped_inside
    assert f"process {writer.pid} still accesses our memory" in str(error)
    with pytest.raises(BufferError):
        held.append(1)  # the engine keeps what it has not got back
    with pytest.raises(KeyError), engine:
        raise KeyError  # not hidden by the same failure
    writer.send_signal(signal.SIGCONT)
    engine.close()
    held.append(1)


AT_EXIT = f"""
import atexit, os, sys

def look():  # after what the engine does at exit
    memory[:] = {POISON}
    print("over", flush=True)
    sys.stdin.readline()
    os._exit(0 if (memory == {POISON}).all() else 3)

atexit.register(look)
import numpy as np
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
memory = np.zeros(256 << 10, np.uint8)
assert engine.register_memory(memory) == 0
print(engine.get_rpc_port(), memory.ctypes.data, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("path", [path for path in PATHS if path != "shared memory"])
def test_nobody_writes_to_memory_of_an_interpreter_that_exits(path, monkeypatch, make_local):
    for name, value in PATHS[path][0].items():
        monkeypatch.setenv(name, value)
    local = make_local()
    target = subprocess.Popen([sys.executable, "-c", AT_EXIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=HERE)
    port, address = map(int, target.stdout.readline().split())
    writer = Writer(local.engine, f"127.0.0.1:{port}", address, 256 * KiB)
    try:
        writer.wait(succeeded=3)
        target.stdin.write("exit\n")
        assert target.stdout.readline() == "over\n"
        before = writer.failed
        writer.wait(failed=before + 5)
    finally:
        writer.stop()
        target.stdin.write("look\n")
    assert target.wait(PATIENCE_S) == 0, "3: a byte landed"


def test_objects_are_free_again_after_close(local):
    memory = bytearray(4096)
    assert local.engine.register_memory(memory) == 0
    assert local.engine.register_memory(memory) == 0, "twice"
    local.engine.close()
    memory.append(1)
