# SPDX-License-Identifier: Apache-2.0
"""A process that runs out of descriptors or threads gets codes, lives on, and uses the same objects once there are some again."""

import pytest

from helpers import run_python
from mooncake.store import MooncakeDistributedStore
from store_helpers import MiB

DESCRIPTORS = r"""
import os, resource, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))  # both: engines take as many as they may
filled = []


def fill(free):
    # Leaves only so many descriptors.
    try:
        while True:
            filled.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(filled.pop())


def empty():
    while filled:
        os.close(filled.pop())
"""

STORE = DESCRIPTORS + r"""
import time
from mooncake.store import MooncakeDistributedStore

master, lent = sys.argv[1], int(sys.argv[2])


def set_up(store):
    return store.setup("127.0.0.1", "P2PHANDSHAKE", lent, 16 << 20, "tcp", "", master)


for free in (0, 2, 5, 9, 14, 24):
    store = MooncakeDistributedStore()
    fill(free)
    code = set_up(store)
    assert code <= 0 and (code != 0 or free > 0)
    assert code != 0 or store.put(f"first {free} {lent}", b"v") <= 0
    empty()
    if code != 0:
        assert set_up(store) == 0
    end = time.monotonic() + 60
    while store.put(f"later {free} {lent}", b"v" * 1000) != 0:
        assert time.monotonic() < end
    assert store.get(f"later {free} {lent}") == b"v" * 1000
    fill(free)
    assert store.put(f"full {free} {lent}", b"v") <= 0
    empty()
    store.close()
print("lives")
"""

# As somebody who may have no more than so many threads more. Root may always have them.
THREADS = r"""
import os, resource

if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(60000 + os.getpid() % 5000)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)


def allow(more):
    resource.setrlimit(resource.RLIMIT_NPROC, (soft if more is None else len(os.listdir("/proc/self/task")) + more, hard))
"""

ENGINE_WITHOUT_THREADS = """
import sys
from mooncake.engine import TransferEngine
""" + THREADS + r"""
engine = TransferEngine()
for more in range(int(sys.argv[1])):
    allow(more)
    code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    if code == 0:
        break
    assert code == -1 and engine.last_error()
assert code != 0 or more > 0
allow(None)
if code != 0:
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, engine.last_error()
print("lives")
"""

BROKEN_WITHOUT_THREADS = """
import ctypes
from mooncake.engine import TransferEngine
""" + THREADS + r"""
LENGTH = 32 << 20


def start():
    engine, memory = TransferEngine(), bytearray(LENGTH)
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0 and engine.register_memory(memory) == 0
    return engine, memory, f"127.0.0.1:{engine.get_rpc_port()}", ctypes.addressof(ctypes.c_char.from_buffer(memory))


ours, memory, _, local = start()
peers = [start() for _ in range(3)]
for _, _, name, address in peers:
    assert ours.transfer_sync_write(name, local, address, 4096) == 0
allow(0)
batches = [ours.batch_transfer_async_write(name, [local], [address], [LENGTH]) for _ in range(4) for _, _, name, address in peers]
assert all(batches)
for engine, _, _, _ in peers[:2]:
    engine.close()
for batch in batches:
    assert ours.get_batch_transfer_status([batch]) in (0, -1)
_, _, name, address = peers[2]
assert ours.transfer_sync_write(name, local, address, LENGTH) == 0
assert ours.transfer_sync_write(peers[0][2], local, peers[0][3], 4096) == -1
print("lives")
"""

STORE_WITHOUT_THREADS = """
import sys
from mooncake.store import MooncakeDistributedStore
""" + THREADS + r"""
store = MooncakeDistributedStore()
for more in range(20):
    allow(more)
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1])
    if code == 0:
        break
    assert code < 0
assert code != 0 or more > 0
allow(None)
if code != 0:
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
store.close()
print("lives")
"""

C_FACES_WITHOUT_THREADS = """
import ctypes, sys
import mooncake
""" + THREADS + r"""
engines = ctypes.CDLL(mooncake.get_library_dir() + "/libtransfer_engine.so")
engines.createTransferEngine.restype = ctypes.c_void_p
engines.createTransferEngine.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
stores = ctypes.CDLL(mooncake.get_library_dir() + "/libmooncake_store.so")
stores.mooncake_store_create.restype = ctypes.c_void_p
store = ctypes.c_void_p(stores.mooncake_store_create())


def create():
    return engines.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", 0, 1)


def set_up():
    return stores.mooncake_store_setup(store, b"127.0.0.1", b"P2PHANDSHAKE", ctypes.c_uint64(0), ctypes.c_uint64(16 << 20), b"tcp", b"",
                                       sys.argv[1].encode())


for more in range(6):
    allow(more)
    create()
allow(0)
assert create() is None
for more in range(9):
    allow(more)
    if set_up() == 0:
        break
allow(None)
assert create()
assert set_up() in (0, -600)
assert stores.mooncake_store_health_check(store) == 0
print("lives")
"""

QUIET = {"MC_LOG_LEVEL": "OFF"}


@pytest.mark.parametrize("lent", [0, 32 * MiB])
def test_a_store_without_descriptors_answers_with_codes_and_works_later(master, lent):
    lender = MooncakeDistributedStore()
    assert lender.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MiB, 16 * MiB, "tcp", "", master.address) == 0
    assert run_python(STORE, master.address, str(lent), env=QUIET).stdout == "lives\n"
    lender.close()


def test_an_engine_without_threads_answers_with_codes_and_works_later():
    assert run_python(ENGINE_WITHOUT_THREADS, "12", env=QUIET).stdout == "lives\n"


def test_peers_that_break_where_there_are_no_threads_cost_their_transfers_only():
    assert run_python(BROKEN_WITHOUT_THREADS, env={**QUIET, "MC_TRANSPORTS": "tcp", "MC_TRANSFER_TIMEOUT": "10"}).stdout == "lives\n"


def test_a_store_without_threads_answers_with_codes_and_works_later(master):
    assert run_python(STORE_WITHOUT_THREADS, master.address, env=QUIET).stdout == "lives\n"


def test_the_c_faces_without_threads_answer_with_codes_and_work_later(master):
    assert run_python(C_FACES_WITHOUT_THREADS, master.address, env=QUIET).stdout == "lives\n"
