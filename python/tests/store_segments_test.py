# SPDX-License-Identifier: Apache-2.0
"""Segments that come and go, where values lie, and tasks that move them."""

import os
import time

import pytest

from mooncake.store import ReplicaStatus, ReplicateConfig, TaskStatus, TaskType
from store_helpers import PATIENCE_S, MiB, random_bytes


def places(store, key) -> set[str]:
    return {replica.get_memory_descriptor().buffer_descriptor.transport_endpoint for replica in store.get_replica_desc(key)}


def finished(store, task):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        answer, code = store.query_task(task)
        assert code == 0
        if answer.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
            return answer
        time.sleep(0.01)
    raise AssertionError("the task does not end")


def prefer(name: str) -> ReplicateConfig:
    config = ReplicateConfig()
    config.preferred_segment = name
    return config


def test_replica_says_where_it_is(store):
    assert store.put("k", bytes(1000)) == 0
    (replica,) = store.get_replica_desc("k")
    assert replica.status == ReplicaStatus.COMPLETE
    assert (replica.is_memory_replica(), replica.is_disk_replica(), replica.is_local_disk_replica()) == (True, False, False)
    descriptor = replica.get_memory_descriptor().buffer_descriptor
    assert (descriptor.size, descriptor.transport_endpoint) == (1000, store.get_hostname())
    assert descriptor.buffer_address > 0
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    assert store.get_replica_desc("none") == []
    found = store.batch_get_replica_desc(["k", "none"])
    assert list(found) == ["k"] and len(found["k"]) == 1


def test_memory_is_lent_and_taken_back(make_store):
    store, other = make_store(segment=0), make_store(segment=0)
    assert store.put("k", b"v") == -200
    mounted = store.allocate_and_mount_segment(16 * MiB)
    assert mounted["ret"] == 0 and mounted["segment_ids"] and mounted["allocated_size"] >= 16 * MiB
    assert other.put("k", b"v") == 0 and store.get("k") == b"v"
    assert store.unmount_and_free_segment(mounted["segment_ids"]) == 0
    assert other.get("k") == b"" and other.put("k", b"v") == -200
    assert store.unmount_and_free_segment(mounted["segment_ids"]) < 0


def test_file_is_lent_and_taken_back(make_store, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(20 * MiB))
    store = make_store(segment=0)
    mounted = store.mount_segment(str(path), 16 * MiB, 4096)
    assert mounted["ret"] == 0 and mounted["segment_ids"]
    value = random_bytes(100_000)
    assert store.put("k", value) == 0 and store.get("k") == value
    assert value[:64] in path.read_bytes()[4096:]
    assert store.unmount_segment(mounted["segment_ids"], grace_period_seconds=0) == 0
    assert store.get("k") == b""


def test_file_that_is_cut_off_costs_its_values_and_nobody_dies(make_store, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(16 * MiB))
    lender, other = make_store(segment=0), make_store(segment=0)
    assert lender.mount_segment(str(path), 16 * MiB)["ret"] == 0
    values = {f"k{i}": random_bytes(size, seed=i) for i, size in enumerate([100, 65536, 70_000, 5 * MiB])}
    for key, value in values.items():
        assert lender.put(key, value) == 0 and lender.get(key) == value
    assert other.allocate_and_mount_segment(16 * MiB)["ret"] == 0
    task, code = lender.create_copy_task("k3", [other.get_hostname()])
    assert code == 0 and finished(lender, task).status == TaskStatus.SUCCESS

    os.truncate(path, 0)
    assert [lender.get(key) for key in ("k0", "k1", "k2")] == [b""] * 3
    assert lender.get("k3") == values["k3"]  # which has another replica
    task, code = other.create_copy_task("k2", [other.get_hostname()])
    assert code == 0 and finished(other, task).status == TaskStatus.FAILED
    for i in range(8):  # some begin in the file
        assert lender.put(f"more{i}", values["k2"]) == 0 and lender.get(f"more{i}") == values["k2"]


@pytest.mark.parametrize("size, offset", [(0, 0), (4096, 100), (64 * MiB, 0), (4096, 20 * MiB), (2**63, 0)])
def test_parts_of_files_that_are_not_there_are_refused(store, tmp_path, size, offset):
    path = tmp_path / "segment"
    path.write_bytes(bytes(20 * MiB))
    assert store.mount_segment(str(path), size, offset)["ret"] < 0
    assert store.mount_segment(str(tmp_path / "none"), 4096)["ret"] < 0


def test_a_path_with_a_zero_byte_names_no_file(store, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(16 * MiB))
    assert store.mount_segment(f"{path}\0 and more", 16 * MiB)["ret"] < 0
    mounted = store.mount_segment(str(path), 16 * MiB)
    assert mounted["ret"] == 0 and store.unmount_segment(mounted["segment_ids"]) == 0


@pytest.mark.parametrize("ids", [["1-2"], ["text"], ["1"], ["-"], ["1-2-3"], ["99999999999999999999999-1"]])
def test_unknown_segments_cannot_be_unmounted(store, ids):
    assert store.unmount_segment(ids) < 0
    assert store.unmount_and_free_segment(ids) < 0
    assert store.unmount_segment([]) == store.unmount_and_free_segment([]) == 0


def test_memory_is_lent_in_units_of_16_mib(store):
    for asked, given in ((1, 16 * MiB), (16 * MiB, 16 * MiB), (16 * MiB + 1, 32 * MiB)):
        mounted = store.allocate_and_mount_segment(asked)
        assert (mounted["ret"], mounted["allocated_size"]) == (0, given)
        assert store.unmount_and_free_segment(mounted["segment_ids"]) == 0


def test_copy_makes_another_replica(make_store):
    first, second = make_store(), make_store()
    value = random_bytes(300_000)
    assert first.put("k", value, prefer(first.get_hostname())) == 0
    assert places(first, "k") == {first.get_hostname()}
    task, code = first.create_copy_task("k", [second.get_hostname()])
    assert code == 0 and task != (0, 0)
    answer = finished(first, task)
    assert (answer.id, answer.type, answer.status) == (task, TaskType.REPLICA_COPY, TaskStatus.SUCCESS)
    assert answer.created_at_ms_epoch <= answer.last_updated_at_ms_epoch
    assert answer.assigned_client != (0, 0) and str(answer.message) in repr(answer)
    assert places(first, "k") == {first.get_hostname(), second.get_hostname()}
    assert finished(first, first.create_copy_task("k", [second.get_hostname()])[0]).status == TaskStatus.SUCCESS
    reader = make_store(segment=0)
    first.close()
    assert reader.get("k") == value


def test_move_leaves_nothing_behind(make_store):
    first, second = make_store(), make_store()
    value = random_bytes(300_000)
    assert first.put("k", value, prefer(first.get_hostname())) == 0
    reader = make_store(segment=0)
    assert places(reader, "k") == {first.get_hostname()} and reader.get("k") == value  # which are remembered
    task, code = second.create_move_task("k", first.get_hostname(), second.get_hostname())
    assert code == 0
    assert finished(second, task).status == TaskStatus.SUCCESS
    assert places(reader, "k") == {second.get_hostname()}
    assert len(reader.batch_get_replica_desc(["k"])["k"]) == 1
    assert reader.get("k") == value


def test_tasks_have_their_codes(make_store):
    store, other = make_store(), make_store()
    name = store.get_hostname()
    assert store.put("k", b"v", prefer(name)) == 0
    assert store.create_copy_task("none", [other.get_hostname()]) == ((0, 0), -704)
    assert store.create_copy_task("k", ["nowhere:1"]) == ((0, 0), -600)
    assert store.create_copy_task("k", []) == ((0, 0), -600)
    assert store.create_move_task("k", name, name) == ((0, 0), -600)
    assert store.create_move_task("k", "nowhere:1", name) == ((0, 0), -600)
    assert store.create_move_task("none", name, other.get_hostname()) == ((0, 0), -704)
    assert store.query_task((1, 2)) == (None, -1400)


def test_writer_clears_its_own_values(make_store):
    first, second = make_store(), make_store()
    assert first.put_batch(["a", "b"], [b"1", b"2"]) == 0
    assert second.batch_replica_clear(["a"]) == []
    assert first.batch_replica_clear(["a", "none"]) == ["a"]
    assert second.batch_is_exist(["a", "b"]) == [0, 1]
    where = "nowhere:1"
    assert first.batch_replica_clear(["b"], where) == []
