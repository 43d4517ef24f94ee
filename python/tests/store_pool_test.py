# SPDX-License-Identifier: Apache-2.0
"""BufferPool: memory on loan, and every way to misuse it."""

import gc
import threading

import numpy as np
import pytest

from mooncake.store import BufferPool
from store_helpers import PATIENCE_S, MiB


@pytest.fixture
def pool(make_store):
    made = BufferPool(make_store(buffer=4 * MiB), alignment=4096)
    yield made


def test_lease_is_memory_for_zero_copy_calls(make_store):
    store = make_store()
    pool = BufferPool(store)
    with pool.acquire(5) as lease:
        assert (lease.size, len(lease), lease.buffer.format, lease.buffer.readonly) == (5, 5, "B", False)
        lease.buffer[:] = b"value"
        assert store.put_from("k", lease.ptr, lease.size) == 0
    other = pool.buffer(5)
    assert store.get_into("k", other.ptr, 5) == 5 and bytes(other.buffer) == b"value"
    assert store.get_into_ranges([other.ptr], [["k"]], [[[0]]], [[[1]]], [[[3]]]) == [[[3]]]
    other.release()
    pool.close()


def test_full_staging_memory_is_followed_by_registered_blocks(pool):
    first = pool.acquire(3 * MiB)
    second = pool.acquire(3 * MiB)  # does not fit beside the first
    assert second.ptr % 4096 == 0
    second.buffer[:] = bytes(3 * MiB)
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(3 * MiB, block=False)
    first.release()
    third = pool.acquire(3 * MiB, block=False)
    third.release()
    second.release()
    pool.close()


def test_no_more_leases_are_out_than_was_said(make_store):
    pool = BufferPool(make_store(), max_regions=2)
    first, second = pool.acquire(10), pool.acquire(10)
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(0, block=False)
    with pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(10, timeout=0.01)
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.acquire(10)))
    waiting.start()
    first.release()
    waiting.join(PATIENCE_S)
    assert len(got) == 1
    got[0].release()
    second.release()
    with pytest.raises(RuntimeError, match="capacity"):
        pool.acquire(1 << 40)
    pool.close()


def test_bound_is_twice_the_staging_memory_or_what_was_said(make_store):
    store = make_store(buffer=4 * MiB)
    assert BufferPool(store).max_bytes == 8 * MiB
    assert BufferPool(store, max_bytes=MiB).max_bytes == 4 * MiB
    assert BufferPool(store, max_bytes=20 * MiB).max_bytes == 20 * MiB


@pytest.mark.parametrize("options", [{"alignment": 0}, {"alignment": 4}, {"alignment": 100}, {"max_bytes": -1}])
def test_pool_that_makes_no_sense_is_refused(make_store, options):
    with pytest.raises((RuntimeError, TypeError)):
        BufferPool(make_store(), **options)


def test_pool_needs_staging_memory(make_store):
    for store in (make_store(buffer=0), None, 5):
        with pytest.raises(RuntimeError):
            BufferPool(store)


@pytest.mark.parametrize("arguments", [{"size": -1}, {"size": 1 << 40}, {"size": 1, "timeout": -1.0}])
def test_lease_that_makes_no_sense_is_refused(pool, arguments):
    with pytest.raises((RuntimeError, TypeError)):
        pool.acquire(**arguments)


def test_empty_lease_is_one(pool):
    with pool.acquire(0) as lease:
        assert lease.ptr != 0 and lease.size == 0 and lease.buffer.nbytes == 0
    pool.close()


def test_release_waits_for_nobody_but_needs_all_views_gone(pool):
    lease = pool.acquire(100)
    view = lease.buffer
    with pytest.raises(RuntimeError, match="views"):
        lease.release()
    part = view[1:3]
    view.release()
    with pytest.raises(RuntimeError, match="views"):
        lease.release()
    array = np.frombuffer(part, np.uint8)
    with pytest.raises((RuntimeError, BufferError)):
        part.release()
        lease.release()
    del array
    part.release()
    lease.release()
    lease.release()  # once more does nothing
    for use in (lambda: lease.ptr, lambda: lease.buffer):
        with pytest.raises((RuntimeError, BufferError), match="released"):
            use()
    pool.close()


def test_end_of_with_needs_all_views_gone(pool):
    with pytest.raises(RuntimeError, match="views"):
        with pool.acquire(100) as lease:
            view = lease.buffer
    view.release()
    lease.release()
    pool.close()


def test_memory_of_a_with_that_failed_is_kept_for_views_that_live_on(pool):
    with pytest.raises(ZeroDivisionError):
        with pool.acquire(100) as lease:
            lease.buffer[:5] = b"alive"
            array = np.frombuffer(lease.buffer, np.uint8)
            raise ZeroDivisionError
    assert array[:5].tobytes() == b"alive"
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    del array
    gc.collect()
    pool.close()


def test_dropped_lease_comes_back(pool):
    lease = pool.acquire(8 * MiB)
    del lease
    gc.collect()
    pool.acquire(8 * MiB, block=False).release()


def test_waiting_ends_with_a_release_or_the_time(pool):
    lease = pool.acquire(8 * MiB)
    with pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(1, timeout=0.01)
    got = []
    waiter = threading.Thread(target=lambda: got.append(pool.acquire(MiB)))
    waiter.start()
    lease.release()
    waiter.join(60)
    assert not waiter.is_alive() and len(got) == 1
    got[0].release()


def test_close_wakes_those_who_wait(pool):
    pool.prewarm(1, 1)
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_lease_survives_its_store(make_store):
    store = make_store()
    pool = BufferPool(store)
    lease = pool.acquire(100)
    store.close()
    lease.buffer[:] = bytes(100)
    lease.release()
    with pytest.raises(RuntimeError):
        pool.acquire(100)
    pool.close()


def test_many_threads_share_a_pool(pool):
    failures = []

    def work(seed):
        for i in range(200):
            with pool.acquire(1 + (seed * 7919 + i * 104729) % MiB) as lease:
                lease.buffer[:1] = bytes([seed])
                if lease.buffer[0] != seed:
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert failures == []
    pool.close()
