# SPDX-License-Identifier: Apache-2.0
"""The store among processes, threads, event loops, forks and exits."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from helpers import HERE, PATIENCE_S, run_python
from mooncake.async_store import MooncakeDistributedStoreAsync
from store_helpers import MiB, Master, open_store, random_bytes

OPEN = """
import sys
sys.path.insert(0, '.')
from store_helpers import *
store = open_store(sys.argv[1])
"""


def test_two_processes_read_each_other(master, store):
    other = subprocess.Popen([sys.executable, "-c", OPEN + "from mooncake.store import ReplicateConfig\nhere = ReplicateConfig()\n"
                              "here.preferred_segment = store.get_hostname()\n"
                              "assert store.put('theirs', random_bytes(300_000, 5), here) == 0\nprint('ready', flush=True)\n"
                              "sys.stdin.read()\nassert store.get('ours') == random_bytes(200_000, 6)\nassert store.close() == 0", master.address],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE)
    assert other.stdout.readline() == b"ready\n"
    assert store.get("theirs") == random_bytes(300_000, 5)
    assert store.put("ours", random_bytes(200_000, 6)) == 0
    other.stdin.close()
    assert other.wait(PATIENCE_S) == 0
    assert store.get("theirs") == b""  # went with its owner


def test_threads_share_a_store(store):
    failures = []

    def work(number):
        for i in range(60):
            key, value = f"{number}/{i}", random_bytes(1000 + 37 * i, number * 1000 + i)
            if store.put(key, value) != 0 or store.get(key) != value or store.batch_is_exist([key, "none"]) != [1, 0]:
                failures.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join(PATIENCE_S) for thread in threads]
    assert failures == []


def test_writers_of_one_key_agree(make_store):
    stores = [make_store() for _ in range(3)]
    codes = []

    def work(number):
        for i in range(30):
            codes.append(stores[number].put(f"k{i}", bytes([number]) * 5000))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join(PATIENCE_S) for thread in threads]
    assert set(codes) == {0}
    for i in range(30):
        values = {store.get(f"k{i}") for store in stores}
        assert len(values) == 1 and len(value := values.pop()) == 5000 and len(set(value)) == 1


def test_close_ends_calls_in_flight(make_store):
    store = make_store()
    value = bytes(MiB)
    started, unexpected = threading.Event(), []

    def work(number):
        i = 0
        while True:
            code = store.put(f"{number}/{i}", value)
            started.set()
            if code not in (0, -200):
                if code not in (-600, -1010):
                    unexpected.append(code)
                return
            store.get(f"{number}/{i}")
            i += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    started.wait(PATIENCE_S)
    assert store.close() == 0
    [thread.join(PATIENCE_S) for thread in threads]
    assert unexpected == [] and not any(thread.is_alive() for thread in threads)


def test_blocking_calls_leave_the_interpreter_to_others(make_store):
    """A large put in one thread; the other goes on counting meanwhile."""
    store = make_store(segment=256 * MiB)
    value = bytes(64 * MiB)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = counted[0]
    assert store.put("k", value) == 0
    after = counted[0]
    done.set()
    counter.join(PATIENCE_S)
    assert after > before


# ---- event loops


def test_every_call_has_an_awaitable_form(master):
    async def use() -> None:
        store = open_store(master.address, kind=MooncakeDistributedStoreAsync)
        assert await store.async_put("k", b"v") == 0
        assert await store.async_get(key="k") == b"v"
        assert await store.async_put_parts("p", b"1", b"2") == 0
        results = await asyncio.gather(*(store.async_put(f"k{i}", bytes([i])) for i in range(50)))
        assert set(results) == {0}
        assert await store.async_get_batch([f"k{i}" for i in range(50)]) == [bytes([i]) for i in range(50)]
        for name in ("async_no_such_call", "no_such_call", "async_"):
            with pytest.raises(AttributeError):
                getattr(store, name)
        assert await store.async_close() == 0

    asyncio.run(use())


# ---- exits

AT_EXIT = {
    "without close": "",
    "with close": "store.close()",
    "with a handle and a lease": "handle = store.get_buffer('k')\npool = BufferPool(store)\nlease = pool.acquire(100)\nview = lease.buffer",
    "with daemon threads inside": "import threading\nat_it = threading.Semaphore(0)\nfor n in range(4):\n"
                                  "    def work(n=n):\n        while True:\n"
                                  "            store.put(f'{n}', bytes(1000000)); store.get('k'); store.remove(f'{n}', True); at_it.release()\n"
                                  "    threading.Thread(target=work, daemon=True).start()\nfor _ in range(40): at_it.acquire()",
    "in a cycle": "class C: pass\nc = C(); c.me = c; c.store = store; c.handle = store.get_buffer('k')",
    "with a shared engine": "from mooncake.engine import TransferEngine\ne = TransferEngine(); assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0\n"
                            "second = open_store(sys.argv[1], engine=e.get_engine(), host=f'127.0.0.1:{e.get_rpc_port()}')\nassert second.put('q', b'v') == 0",
    "by SystemExit": "sys.exit(0)",
}


@pytest.mark.parametrize("how", AT_EXIT)
def test_interpreter_ends_cleanly(master, how):
    began = time.monotonic()
    code = OPEN + "from mooncake.store import BufferPool\nassert store.put('k', b'value') == 0\n" + AT_EXIT[how]
    run_python(code, master.address)
    assert time.monotonic() - began < 30


def test_forked_child_has_no_store_and_harms_nobody(master):
    code = OPEN + """
import os
assert store.put('k', b'v') == 0
handle = store.get_buffer('k')
child = os.fork()
if child == 0:
    assert store.get('k') == b'' and store.put('l', b'v') == -600 and store.health_check() == 1 and store.close() == 0
    assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 0, 0, 'tcp', '', sys.argv[1]) == 0
    assert store.is_exist('k') == 1
    del handle
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store.get('k') == b'v' and bytes(handle) == b'v'
"""
    run_python(code, master.address)


# ---- the master


def test_health_tells_of_a_dead_master():
    master = Master("--client_ttl=3600")  # long before that is over
    store = open_store(master.address)
    assert store.put("k", b"v") == 0 and store.health_check() == 0
    master.kill()
    end = time.monotonic() + PATIENCE_S
    while store.health_check() != 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert store.health_check() == 2
    assert store.put("l", b"v") < 0
    assert store.close() == 0


def test_values_survive_their_master():
    master = Master()
    stores = [open_store(master.address) for _ in range(2)]
    values = {f"k{i}": random_bytes(3000, i) for i in range(200)}
    assert stores[0].put_batch(list(values), list(values.values())) == 0
    master.kill()
    master = Master(port=master.port)
    end = time.monotonic() + PATIENCE_S
    while stores[1].get_batch(list(values)) != list(values.values()):
        assert time.monotonic() < end, "not all values came back"
        time.sleep(0.1)
    assert stores[0].put("new", b"v") == 0
    for store in stores:
        assert store.close() == 0
    master.stop()


def test_hundreds_of_calls_at_once(make_store):
    store = make_store(segment=256 * MiB)
    keys = [[f"{n}/{i}" for i in range(16)] for n in range(512)]
    results = [None] * 512

    def work(n):
        results[n] = (store.put_batch(keys[n], [bytes([n % 256]) * 4096] * 16), store.get_batch(keys[n]) == [bytes([n % 256]) * 4096] * 16)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(512)]
    [thread.start() for thread in threads]
    [thread.join(PATIENCE_S) for thread in threads]
    assert set(results) == {(0, True)}
