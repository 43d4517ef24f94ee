# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of one host share."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

import fake_torch
from helpers import PATIENCE_S, run_python
from mooncake import shared_segment
from mooncake.engine import SharedSegment
from mooncake.shared_segment import SharedSegmentError, create_shared_segment, shared_segment_supported

HEADER = struct.Struct("<4sHHIIQQ")


def descriptors() -> list[str]:
    gc.collect()
    return sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}"))


def pair(name: str = "kv", size: int = 5000, owner: int = 0):
    ranks = [SharedSegment.create(name, size, 2, rank, owner_rank=owner) for rank in range(2)]
    return [segment for segment, _ in ranks], [blob for _, blob in ranks]


@pytest.mark.parametrize("owner", [0, 1])
def test_two_ranks_see_the_same_bytes(owner):
    segments, blobs = pair(owner=owner)
    assert [segment.ready() for segment in segments] == [False, False]
    for segment in segments:
        assert segment.complete(blobs) is None
    assert [segment.ready() for segment in segments] == [True, True]
    assert [segment.size() for segment in segments] == [5000, 5000] and [segment.device_addr() for segment in segments] == [0, 0]
    assert segments[0].base_addr() != segments[1].base_addr()
    ctypes.memmove(segments[0].base_addr(), b"hello", 5)
    assert ctypes.string_at(segments[1].base_addr(), 5) == b"hello"
    ctypes.memset(segments[1].base_addr() + 4999, 7, 1)
    assert ctypes.string_at(segments[0].base_addr() + 4999, 1) == b"\7"


def test_blobs_have_the_promised_form():
    _, blobs = pair()
    assert [len(blob) for blob in blobs] == [160, 160]
    first, second = (HEADER.unpack_from(blob) for blob in blobs)
    assert (first[3], second[3]) == (0, 1) and first[4] > 0 and second[4] == 0
    assert first[5] == second[5] and first[6] == second[6] == 8192


def test_the_peers_of_another_process_outlive_the_owner():
    segment, blob = SharedSegment.create("two", 1 << 20, 2, 0)
    code = """
import ctypes, sys
from mooncake import shared_segment
from mooncake.engine import SharedSegment
segment, blob = SharedSegment.create("two", 1 << 20, 2, 1)
print(blob.hex(), flush=True)
segment.complete([bytes.fromhex(sys.stdin.readline()), blob])
print(ctypes.string_at(segment.base_addr(), 5).decode(), flush=True)
sys.stdin.readline()
ctypes.memmove(segment.base_addr(), b"after", 5)
print(ctypes.string_at(segment.base_addr(), 5).decode(), flush=True)
"""
    peer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        segment.complete([blob, bytes.fromhex(peer.stdout.readline())])
        ctypes.memmove(segment.base_addr(), b"early", 5)
        peer.stdin.write(blob.hex() + "\n")
        assert peer.stdout.readline() == "early\n"
        del segment
        gc.collect()
        peer.stdin.write("\n")
        assert peer.stdout.readline() == "after\n"
        assert peer.wait(PATIENCE_S) == 0
    finally:
        peer.kill()
        peer.communicate()


def test_an_owner_that_was_killed_leaves_nothing_and_is_named():
    before = set(os.listdir("/dev/shm"))
    done = run_python("""
import os, signal
from mooncake import shared_segment
from mooncake.engine import SharedSegment
segment, blob = SharedSegment.create("dead", 4096, 2, 0)
print(blob.hex(), os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""", check=False)
    assert done.returncode == -signal.SIGKILL
    blob, pid = done.stdout.split()
    segment, own = SharedSegment.create("dead", 4096, 2, 1)
    with pytest.raises(RuntimeError, match=f"rank 0, process {pid}.*must live"):
        segment.complete([bytes.fromhex(blob), own])
    assert not segment.ready() and segment.base_addr() == 0
    assert set(os.listdir("/dev/shm")) - before == set()


def test_an_owner_that_dropped_its_segment_is_found_out():
    """Even if the descriptor's number means another file by now."""
    (owner, peer), blobs = pair()
    del owner
    gc.collect()
    reused = [os.open("/dev/null", os.O_RDWR) for _ in range(8)]
    try:
        with pytest.raises(RuntimeError, match="gone|must live"):
            peer.complete(blobs)
    finally:
        for descriptor in reused:
            os.close(descriptor)


def test_nothing_is_left_open():
    before, maps = descriptors(), open("/proc/self/maps").read().count("memfd")
    for _ in range(3):
        segments, blobs = pair()
        for segment in segments:
            segment.complete(blobs)
    del segments, segment
    assert descriptors() == before
    assert open("/proc/self/maps").read().count("memfd") == maps


def changed(blob: bytes, offset: int, value: bytes) -> bytes:
    return blob[:offset] + value + blob[offset + len(value):]


@pytest.mark.parametrize("spoil, why", [
    (lambda a, b: [], "0 blobs for 2 ranks"),
    (lambda a, b: [a], "1 blobs for 2 ranks"),
    (lambda a, b: [a, b, b], "3 blobs for 2 ranks"),
    (lambda a, b: [b, a], "blob of rank 0 is that of rank 1"),
    (lambda a, b: [a, a], "blob of rank 1 is that of rank 0"),
    (lambda a, b: [a[:-1], b], "rank 0 has 159 bytes, not 160"),
    (lambda a, b: [a, b""], "rank 1 has 0 bytes"),
    (lambda a, b: [changed(a, 0, b"\0"), b], "rank 0 .* magic"),
    (lambda a, b: [a, changed(b, 4, b"\7")], "rank 1 has version 7, not 1: the ranks run different builds"),
    (lambda a, b: [a, changed(b, 6, b"\7")], "rank 1 comes from back end 7"),
    (lambda a, b: [changed(a, 12, b"\xff\xff"), b], "rank 0 has a handle of 65535 bytes"),
    (lambda a, b: [a, changed(b, 12, b"\x28")], "rank 1 has a handle of 40 bytes"),
    (lambda a, b: [changed(a, 16, b"\1\2\3"), b], "rank 0 has another fingerprint"),
    (lambda a, b: [a, changed(b, 24, b"\1\1")], "rank 1 tells of .* bytes, not 8192"),
    (lambda a, b: [changed(a, 32, b"\xff\xff\xff\x7f"), b], "cannot open the memory of rank 0"),
    (lambda a, b: [changed(a, 36, b"\0\0\0\0"), b], "gone|cannot open"),
    (lambda a, b: [changed(a, 40, b"\xff"), b], "is gone"),
])
def test_blobs_that_do_not_fit_are_refused_with_the_reason(spoil, why):
    (_owner, peer), blobs = pair()
    with pytest.raises(RuntimeError, match=why):
        peer.complete(spoil(*blobs))
    assert not peer.ready() and peer.base_addr() == 0
    peer.complete(tuple(blobs))
    assert peer.ready()
    with pytest.raises(RuntimeError, match="before"):
        peer.complete(blobs)


@pytest.mark.parametrize("other", [("other", 5000, 2, 1), ("kv", 5001, 2, 1), ("kv", 5000, 3, 1)])
def test_ranks_with_different_declarations_do_not_meet(other):
    _segments, blobs = pair()
    peer, blob = SharedSegment.create(*other)
    with pytest.raises(RuntimeError, match="fingerprint|blobs for"):
        peer.complete([blobs[0], blob])


@pytest.mark.parametrize("blobs", [None, 3, "ab", [1, 2], ["a", "b"]])
def test_what_is_no_list_of_bytes_is_a_type_error(blobs):
    with pytest.raises(TypeError):
        pair()[0][1].complete(blobs)


@pytest.mark.parametrize("arguments", [("x", 0, 1, 0), ("x", 1 << 60, 1, 0), ("x", 1 << 46, 1, 0), ("x", 10, 0, 0), ("x", 10, 1, 1),
                                       ("x", 10, 2, 0, 2)])
def test_impossible_segments_are_runtime_errors(arguments):
    before = descriptors()
    with pytest.raises(RuntimeError, match="shared segment: "):
        SharedSegment.create(*arguments)
    assert descriptors() == before


@pytest.mark.parametrize("arguments", [(3, 10, 1, 0), ("x", -1, 1, 0), ("x", 10, 1, -1), ("x", 10, 2, 0, -1), ("x", 1.5, 1, 0), ("x", 10, 1)])
def test_wrong_types_are_type_errors(arguments):
    with pytest.raises(TypeError):
        SharedSegment.create(*arguments)


def test_devices_are_refused_by_name():
    assert SharedSegment.supported() and shared_segment_supported()
    for options in ({"mmap": False}, {"host_register": True}, {"mmap": False, "host_register": True}):
        assert not SharedSegment.supported(**options) and not shared_segment_supported(**options)
        with pytest.raises(RuntimeError, match="Ascend"):
            SharedSegment.create("x", 10, 1, 0, **options)


def test_the_examples_of_the_guide_run():
    guide = (Path(__file__).resolve().parents[2] / "docs/guide/rpc-and-shared-memory.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(compile(example, "docs/guide/rpc-and-shared-memory.md", "exec"), {})


def test_only_create_makes_one():
    with pytest.raises(TypeError):
        SharedSegment()


# ---- tensors


@pytest.fixture
def torch(monkeypatch):
    if importlib.util.find_spec("torch"):
        import torch as real

        return real
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    return fake_torch


def test_blocks_lie_on_pages_of_their_own_in_the_order_of_their_names(torch):
    blocks = {"z": dict(count=1, shape=(2000,), dtype=torch.float32), "a": dict(count=2, shape=(3, 2), dtype=torch.int8)}
    segment = create_shared_segment("a", blocks, 1, 0)
    places = {name: [tensor.data_ptr() - segment.base_addr() for tensor in segment.tensors(name)] for name in "az"}
    assert places == {"a": [0, 12288], "z": [4096]} and segment.total_size() == 24576
    assert tuple(segment.tensors("a")[0].shape) == (3, 2) and segment.tensors("z")[0].dtype == torch.float32


def test_tensors_are_the_memory_and_keep_it(torch):
    segment = create_shared_segment("a", {"k": dict(count=2, shape=(4,), dtype=torch.int32)}, 1, 0)
    first, again = segment.tensors("k")[1], segment.tensors("k")[1]
    del segment
    gc.collect()
    first[0] = 5
    assert again.tolist() == [5, 0, 0, 0]


@pytest.mark.parametrize("blocks, why", [
    ({}, "at least one"), ({"k": {}}, "'k' needs count"), ({"k": 3}, "'k' needs count"),
    ({"k": dict(count=0, shape=(1,), dtype=fake_torch.int8)}, "above 0"),
    ({"k": dict(count=1, shape=(0,), dtype=fake_torch.int8)}, "shape"), ({"k": dict(count=1, shape=(), dtype=fake_torch.int8)}, "shape"),
    ({"k": dict(count=1, shape=2, dtype=fake_torch.int8)}, "'k' needs count"),
])
def test_impossible_blocks_are_named(blocks, why):
    with pytest.raises(SharedSegmentError, match=why):
        create_shared_segment("a", blocks, 1, 0)


@pytest.mark.parametrize("options, why", [
    (dict(world_size=2), "comm_group"), (dict(comm_group=1, tp_group=1), "only comm_group"), (dict(mmap=False), "Ascend"),
    (dict(host_register=True), "Ascend"), (dict(mmap=False, host_register=True), "needs mmap"), (dict(rank_id=1), "rank 1"),
])
def test_what_cannot_be_shared_says_why(options, why):
    blocks = {"k": dict(count=1, shape=(1,), dtype=fake_torch.int8)}
    with pytest.raises(SharedSegmentError, match=why):
        create_shared_segment("a", blocks, **{"world_size": 1, "rank_id": 0, **options})


def test_unknown_block_is_an_error(torch):
    with pytest.raises(SharedSegmentError, match="'zz'"):
        create_shared_segment("a", {"k": dict(count=1, shape=(1,), dtype=torch.int8)}, 1, 0).tensors("zz")


class Group:
    """As much of a process group as two threads need."""

    def __init__(self) -> None:
        self.barrier, self.items = threading.Barrier(2), [None, None]

    def gather(self, rank: int, item: object) -> list:
        self.items[rank] = item
        self.barrier.wait(PATIENCE_S)
        items = list(self.items)
        self.barrier.wait(PATIENCE_S)
        return items


def both_ranks(monkeypatch, counts: tuple[int, int], **options) -> list:
    """What create_shared_segment() gives or raises in each of two ranks."""
    group, results = Group(), [None, None]
    ranks = threading.local()
    monkeypatch.setattr(shared_segment, "_all_gather", lambda group, size, item: group.gather(ranks.number, item))

    def run(rank: int) -> None:
        ranks.number = rank
        blocks = {"k": dict(count=counts[rank], shape=(8,), dtype=fake_torch.int32)}
        try:
            results[rank] = create_shared_segment("kv", blocks, 2, rank, comm_group=group, **options)
        except SharedSegmentError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return results


def test_ranks_of_a_group_share(monkeypatch):
    one, other = both_ranks(monkeypatch, (2, 2), owner_rank=1)
    ctypes.memset(one.base_addr(), 7, 1)
    assert ctypes.string_at(other.base_addr(), 1) == b"\7" and one.base_addr() != other.base_addr()


@pytest.mark.parametrize("counts, options, why", [((2, 3), {}, "fingerprint"), ((2, 2), {"owner_rank": 2}, "owner 2"),
                                                  ((2, 2), {"mmap": False}, "Ascend")])
def test_ranks_of_a_group_fail_together(monkeypatch, counts, options, why):
    errors = both_ranks(monkeypatch, counts, **options)
    assert errors[0] == errors[1] and errors[0].startswith("rank 0: ") and why in errors[0]


def test_the_group_may_be_one_of_torch_or_hold_one(monkeypatch):
    asked = []

    def all_gather_object(items, item, group):
        asked.append(group)
        items[:] = [item] * len(items)

    package = types.ModuleType("torch")
    package.distributed = types.SimpleNamespace(all_gather_object=all_gather_object)
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch.distributed", package.distributed)
    assert shared_segment._all_gather("plain", 2, "x") == ["x", "x"]
    assert shared_segment._all_gather(types.SimpleNamespace(cpu_group="inner"), 1, "y") == ["y"]
    assert asked == ["plain", "inner"]
