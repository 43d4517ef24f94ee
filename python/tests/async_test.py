# SPDX-License-Identifier: Apache-2.0
"""Transfers that are started first and asked after later, by batch id; and prepared ones."""

import gc
import threading

import numpy as np
import pytest

from helpers import run_python
from mooncake.engine import PreparedTransfer, TransferOpcode

READ, WRITE = TransferOpcode.Read, TransferOpcode.Write
NO_BATCHES = [0, 1, 12345, 2**63, 2**64 - 1]


def settled(engine, batch: int) -> int:
    """Polls until the batch is over."""
    while (status := engine.transfer_check_status(batch)) == 0:
        pass
    return status


# ---- batches


def test_started_write_arrives(pair, pattern):
    data = pattern(10_000)
    pair.local.memory[:10_000] = data
    batch = pair.engine.batch_transfer_async_write(pair.peer.name, [pair.local.address, pair.local.address + 5000],
                                                   [pair.peer.address, pair.peer.address + 5000], [5000, 5000])
    assert 0 < batch < 2**64 - 1
    assert pair.engine.get_batch_transfer_status([batch]) == 0
    assert pair.peer.read(0, 10_000) == data.tobytes()


def test_started_read_arrives(pair, pattern):
    data = pattern(10_000).tobytes()
    pair.peer.write(0, data)
    batch = pair.engine.batch_transfer_async_read(pair.peer.name, [pair.local.address], [pair.peer.address], [10_000])
    assert settled(pair.engine, batch) == 1
    assert pair.local.memory[:10_000].tobytes() == data


def test_single_submit_and_opcode_form(pair):
    pair.local.memory[:8] = 8
    batches = [pair.engine.transfer_submit_write(pair.peer.name, pair.local.address, pair.peer.address, 8),
               pair.engine.batch_transfer_async(pair.peer.name, [pair.local.address], [pair.peer.address + 8], [8], WRITE)]
    assert len(set(batches)) == 2 and 0 not in batches
    assert pair.engine.get_batch_transfer_status(batches) == 0
    assert pair.peer.read(0, 17) == b"\x08" * 16 + b"\0"


def test_many_batches_in_flight(pair, pattern):
    pair.local.memory[:] = pattern(pair.local.memory.size)
    batches = [pair.engine.batch_transfer_async_write(pair.peer.name, [pair.local.address + i * 1024], [pair.peer.address + i * 1024], [1024])
               for i in range(1000)]
    assert pair.engine.get_batch_transfer_status(batches) == 0
    assert pair.peer.read(0, 1_024_000) == pair.local.memory[:1_024_000].tobytes()


def test_failure_shows_in_the_status(pair):
    bad = pair.engine.transfer_submit_write(pair.peer.name, pair.local.address, 4096, 8)
    good = pair.engine.transfer_submit_write(pair.peer.name, pair.local.address, pair.peer.address, 8)
    assert bad and good
    assert pair.engine.get_batch_transfer_status([good, bad]) == -1
    assert pair.peer.name in pair.engine.last_error()
    bad = pair.engine.transfer_submit_write(pair.peer.name, pair.local.address, 4096, 8)
    assert settled(pair.engine, bad) == -1


def test_ids_are_free_after_their_final_status(local):
    done = local.engine.transfer_submit_write(local.name, local.address, local.address + 64, 8)
    assert settled(local.engine, done) == 1
    assert local.engine.transfer_check_status(done) == -1
    assert local.engine.get_batch_transfer_status([done]) == -1
    waited = local.engine.transfer_submit_write(local.name, local.address, local.address + 64, 8)
    assert local.engine.get_batch_transfer_status([waited, waited]) == -1, "the second one is unknown by then"
    assert local.engine.get_batch_transfer_status([waited]) == -1


@pytest.mark.parametrize("batch", NO_BATCHES)
def test_wrong_ids_are_refused(local, batch):
    assert local.engine.transfer_check_status(batch) == -1
    assert local.engine.get_batch_transfer_status([batch]) == -1
    assert local.engine.cancel(batch) == -1


@pytest.mark.parametrize("call, argument", [
    ("transfer_check_status", -1), ("transfer_check_status", "1"), ("transfer_check_status", None), ("transfer_check_status", 2**64),
    ("get_batch_transfer_status", 1), ("get_batch_transfer_status", [-1]), ("get_batch_transfer_status", ["1"]), ("get_batch_transfer_status", None),
    ("cancel", -1), ("cancel", 1.0),
])
def test_ids_of_wrong_type_are_type_errors(local, call, argument):
    with pytest.raises(TypeError):
        getattr(local.engine, call)(argument)


def test_no_batches_are_all_done(local):
    assert local.engine.get_batch_transfer_status([]) == 0


def test_empty_batch_is_done(local):
    batch = local.engine.batch_transfer_async_write(local.name, [], [], [])
    assert batch != 0
    assert local.engine.get_batch_transfer_status([batch]) == 0


@pytest.mark.parametrize("lists", [([1], [1, 1], [1]), ([1], [1], []), ([], [1], [1])])
def test_lists_of_different_lengths_start_nothing(local, lists):
    assert local.engine.batch_transfer_async_write(local.name, *lists) == 0
    assert local.engine.batch_transfer_async_read(local.name, *lists) == 0
    assert local.engine.batch_transfer_async(local.name, *lists, READ) == 0


def test_unreachable_peer_starts_nothing(local):
    assert local.engine.batch_transfer_async_write("127.0.0.1:1", [local.address], [local.address], [1]) == 0
    assert local.engine.transfer_submit_write("127.0.0.1:1", local.address, local.address, 1) == 0


def test_objects_live_as_long_as_the_batch(local, pattern):
    data = pattern(1000)
    expected = data.tobytes()
    batch = local.engine.batch_transfer_async_write(local.name, [data], [local.address])
    del data
    gc.collect()
    assert local.engine.get_batch_transfer_status([batch]) == 0
    assert local.memory[:1000].tobytes() == expected
    buffer = bytearray(1000)
    batch = local.engine.transfer_submit_write(local.name, buffer, local.address)
    assert settled(local.engine, batch) == 1
    buffer.append(1)  # let go with the batch
    with pytest.raises(BufferError):
        local.engine.batch_transfer_async_read(local.name, [b"read-only"], [local.address])


def test_cancelled_batch_moves_nothing_any_more(stalling_pair):
    pair = stalling_pair
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == 0
    pair.peer.pause()
    batch = pair.engine.batch_transfer_async_read(pair.peer.name, [pair.local.address], [pair.peer.address], [8 << 20])
    assert batch != 0
    assert pair.engine.transfer_check_status(batch) == 0
    assert pair.engine.cancel(batch) == 0
    pair.local.memory[:] = 77
    pair.peer.resume()
    assert pair.engine.get_batch_transfer_status([batch]) == -1
    assert "cancel" in pair.engine.last_error()
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == 0
    assert np.all(pair.local.memory == 77)


def test_close_ends_what_others_wait_for(stalling_pair):
    pair = stalling_pair
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == 0
    pair.peer.pause()
    codes = []
    inside = [
        lambda: pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 8 << 20),
        lambda: pair.engine.batch_transfer_sync_read(pair.peer.name, [pair.local.address], [pair.peer.address], [8 << 20]),
        lambda: pair.engine.get_batch_transfer_status([pair.engine.transfer_submit_write(pair.peer.name, pair.local.address, pair.peer.address, 8 << 20)]),
    ]
    threads = [threading.Thread(target=lambda call=call: codes.append(call())) for call in inside]
    for thread in threads:
        thread.start()
    pair.engine.close()
    for thread in threads:
        thread.join()
    assert codes == [-1, -1, -1]


# ---- prepared


def test_prepared_transfer_runs_both_ways_any_number_of_times(pair, pattern):
    offsets = [i * 3000 for i in range(100)]
    plan = pair.engine.prepare(pair.peer.name, [pair.local.address + o for o in offsets], [pair.peer.address + o for o in offsets], [2000] * 100)
    assert isinstance(plan, PreparedTransfer)
    for seed in range(3):
        data = pattern(300_000, seed)
        pair.local.memory[:300_000] = data
        assert plan.write() == 0
        pair.local.memory[:300_000] = 0
        assert plan.read() == 0
        assert all(np.array_equal(pair.local.memory[o:o + 2000], data[o:o + 2000]) for o in offsets)


def test_prepared_submits_are_batches(pair):
    plan = pair.engine.prepare(pair.peer.name, [pair.local.address], [pair.peer.address], [1000])
    batches = [plan.submit_write(), plan.submit_read(), plan.submit_write()]
    assert 0 not in batches and len(set(batches)) == 3
    assert pair.engine.get_batch_transfer_status(batches) == 0


def test_plan_outlives_the_engine_object(make_local):
    local = make_local()
    plan = local.engine.prepare(local.name, [local.address], [local.address + 4096], [100])
    local.engine.close()
    assert plan.write() == -1 and plan.read() == -1
    assert plan.submit_write() == 0 and plan.submit_read() == 0


def test_plan_keeps_its_objects_also_for_its_batches(local, pattern):
    data = pattern(100_000)
    expected = data.tobytes()
    plan = local.engine.prepare(local.name, [data], [local.address])
    batch = plan.submit_write()
    del plan, data
    gc.collect()
    assert local.engine.get_batch_transfer_status([batch]) == 0
    assert local.memory[:100_000].tobytes() == expected


def test_prepare_checks_what_it_is_given(local):
    with pytest.raises(ValueError, match="equally long"):
        local.engine.prepare(local.name, [1], [1, 2], [1])
    with pytest.raises(TypeError):
        local.engine.prepare(local.name, [-1], [1], [1])
    with pytest.raises(TypeError):
        local.engine.prepare(local.name, [1], [1])
    with pytest.raises(BufferError):
        local.engine.prepare(local.name, [b"read-only"], [local.address]).read()
    assert local.engine.prepare(local.name, [b"read-only"], [local.address]).write() == 0
    assert local.engine.prepare(local.name, [], [], []).write() == 0


def test_prepared_failure_is_told_by_the_same_codes(local):
    plan = local.engine.prepare(local.name, [local.address], [4096], [100])
    assert plan.write() == -1
    assert local.engine.last_error().startswith("PreparedTransfer.write: ")
    batch = plan.submit_write()
    assert batch == 0 or local.engine.get_batch_transfer_status([batch]) == -1


def test_one_plan_in_eight_threads(pair):
    plan = pair.engine.prepare(pair.peer.name, [pair.local.address], [pair.peer.address], [10_000])
    codes = []
    threads = [threading.Thread(target=lambda: codes.extend(plan.write() for _ in range(100))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 800


POLLED_ON_ONE_PROCESSOR = r"""
import ctypes, os
from mooncake.engine import TransferEngine

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # before there are other threads: they are all to be there


def start():
    engine, memory = TransferEngine(), bytearray(4096)
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0 and engine.register_memory(memory) == 0
    return engine, memory, f"127.0.0.1:{engine.get_rpc_port()}", ctypes.addressof(ctypes.c_char.from_buffer(memory))


ours, near, _, local = start()
theirs, far, name, remote = start()
assert ours.transfer_sync_write(name, local, remote, 64) == 0
looks = 0
for _ in range(300):
    batch = ours.transfer_submit_write(name, local, remote, 64)
    while (status := ours.transfer_check_status(batch)) == 0:
        looks += 1
    assert status == 1
print(looks)
"""


def test_who_polls_lets_the_peer_have_the_processor():
    """Or it would look some thousand times in vain, until its time is over, before a peer on its processor gets to answer."""
    looks = int(run_python(POLLED_ON_ONE_PROCESSOR, env={"MC_TRANSPORTS": "tcp", "MC_LOG_LEVEL": "OFF"}).stdout)
    assert looks < 300 * 200
