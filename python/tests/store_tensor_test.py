# SPDX-License-Identifier: Apache-2.0
"""Tensors: with torch where it is installed, else with a stand-in of the few functions that are used."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import struct
import sys

import numpy as np
import pytest

import fake_torch
import mooncake.store as module
from mooncake._tensor_format import HEADER_BYTES, parse_header, parse_manifest
from mooncake.store import ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism
from store_helpers import Memory

NAMES = ["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16", "bfloat16",
         "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    if importlib.util.find_spec("torch"):
        import torch as real

        return real
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    return fake_torch


@pytest.fixture
def numbers(torch):
    return torch.arange(24, dtype=torch.float32).reshape((4, 6))


def bits(tensor) -> bytes:
    tensor = tensor.contiguous()
    size = 1
    for extent in tensor.shape:
        size *= extent
    return ctypes.string_at(tensor.data_ptr(), size * tensor.dtype.itemsize)


def test_header_is_what_other_programs_expect(store, torch, numbers):
    assert store.put_tensor("k", numbers) == 0
    value = store.get("k")
    assert len(value) == HEADER_BYTES + 96 == module._tensor_metadata_size() + 96
    assert struct.unpack_from("<IHHiiIIQQ", value) == (0x4D4F4F4E, 1, 304, 0, 2, 0, 0, 304, 96)
    assert struct.unpack_from("<8q8qII", value, 40) == (4, 6, *[-1] * 6, 4, 6, *[-1] * 6, 0, 0)
    assert value[HEADER_BYTES:] == bits(numbers)


@pytest.mark.parametrize("code, name", list(enumerate(NAMES)))
def test_every_type_comes_back(store, torch, code, name):
    if not hasattr(torch, name):
        pytest.skip(f"no {name} here")
    dtype = getattr(torch, name)
    tensor = torch.arange(30, dtype=torch.uint8).view(dtype if dtype.itemsize == 1 else torch.uint8)
    if dtype.itemsize > 1:
        tensor = torch.arange(32, dtype=torch.uint8).view(dtype)
    elif name == "bool":
        tensor = torch.tensor([True, False, True], dtype=dtype)
    assert store.put_tensor("k", tensor) == 0
    assert struct.unpack_from("<i", store.get("k"), 8) == (code,)
    found = store.get_tensor("k")
    assert found.dtype == dtype and tuple(found.shape) == tuple(tensor.shape) and bits(found) == bits(tensor)


def test_shapes_of_all_kinds_come_back(store, torch, numbers):
    for index, tensor in enumerate([torch.tensor(3.5), torch.zeros(0, 3), torch.zeros(1, 2, 1, 1, 1, 1, 1, 3), numbers.t(), numbers[1:3]]):
        assert store.put_tensor(f"k{index}", tensor) == 0
        found = store.get_tensor(f"k{index}")
        assert tuple(found.shape) == tuple(tensor.shape) and bits(found) == bits(tensor)


def test_what_cannot_be_stored_is_refused(store, torch):
    assert store.put_tensor("k", torch.zeros(*[1] * 9)) == -600
    assert store.put_tensor("k", "text") == store.put_tensor("k", None) == store.put_tensor("k", b"bytes") == -600
    assert store.get_tensor("k") is None


def test_values_that_are_no_tensors_are_none(store, numbers):
    assert store.put_tensor("k", numbers) == 0
    good = store.get("k")
    bad = [b"short", bytes(400), good[:-1], good + b"x", b"\0" + good[1:], good[:8] + b"\x7f" + good[9:], good[:12] + b"\x09" + good[13:],
           good[:104] + b"\xff" * 8 + good[112:]]
    for index, value in enumerate(bad):
        assert store.put(f"b{index}", value) == 0
    assert store.batch_get_tensor([f"b{index}" for index in range(len(bad))]) == [None] * len(bad)
    for value in bad:
        assert parse_header(value[:HEADER_BYTES], len(value)) is None
        with pytest.raises(ValueError):
            module._deserialize_tensor(value)
    assert parse_manifest(b"") is None and parse_manifest(bytes(96)) is None


def test_batches_keep_the_order_and_fail_alone(store, torch, numbers):
    assert store.batch_put_tensor(["a", "b", "c"], [numbers, "text", numbers.t()]) == [0, -600, 0]
    first, missing, third = store.batch_get_tensor(["a", "b", "c"])
    assert torch.equal(first, numbers) and missing is None and torch.equal(third, numbers.t().contiguous())
    assert store.batch_put_tensor([], []) == store.batch_get_tensor([]) == []
    assert store.batch_put_tensor(["a", "b"], [numbers]) == [-600, -600]


def test_configurations_are_used(store, torch, numbers):
    config = ReplicateConfig()
    config.preferred_segments = [store.get_hostname()]
    assert store.pub_tensor("a", numbers, config) == 0 and store.batch_pub_tensor(["b"], [numbers], config=config) == [0]
    config.preferred_segments = [store.get_hostname(), "other:1"]
    assert store.pub_tensor("c", numbers, config) == -600 and store.batch_pub_tensor(["c"], [numbers], config) == [-600]
    assert store.upsert_pub_tensor("c", numbers, config) == -600
    config = ReplicateConfig()
    config.group_ids = ["g", "h"]
    assert store.batch_pub_tensor(["d", "e"], [numbers, "text"], config) == [0, -600]
    assert store.batch_pub_tensor(["f"], [numbers], config) == [-600]


def test_upsert_replaces(store, torch, numbers):
    assert store.put_tensor("k", numbers) == store.put_tensor("k", numbers.t()) == 0
    assert torch.equal(store.get_tensor("k"), numbers)
    assert store.upsert_tensor("k", numbers.t()) == 0 and tuple(store.get_tensor("k").shape) == (6, 4)
    assert store.batch_upsert_tensor(["k", "l"], [numbers, numbers]) == [0, 0]
    assert store.batch_upsert_pub_tensor(["l"], [numbers.t()]) == [0] and tuple(store.get_tensor("l").shape) == (6, 4)


def test_memory_of_the_caller_is_the_tensor(store, torch, numbers, memory: Memory):
    assert store.put_tensor("k", numbers) == 0
    found = store.get_tensor_into("k", memory.address, memory.size)
    assert torch.equal(found, numbers)
    memory.fill(struct.pack("<f", 77.0), HEADER_BYTES)
    assert found.tolist()[0][0] == 77
    assert store.get_tensor_into("k", memory.address, 399) is None and store.get_tensor_into("none", memory.address, 500) is None
    assert store.put_tensor_from("copy", memory.address, 400) == 0 and store.get_tensor("copy").tolist()[0][0] == 77
    assert store.put_tensor_from("bad", memory.address, 401) == store.put_tensor_from("bad", memory.address + 1, 400) == -600
    assert store.put_tensor_from("bad", 0, 400) == store.put_tensor_from("bad", memory.address, 0) == -600
    assert store.upsert_tensor_from("copy", memory.address, 400) == 0
    assert store.batch_put_tensor_from(["x", "y"], [memory.address, 0], [400, 400]) == [0, -600]
    assert store.batch_upsert_tensor_from(["x"], [memory.address], [400]) == [0]
    assert store.batch_put_tensor_from(["x", "y"], [1], [1]) == store.batch_get_tensor_into(["x", "y"], [1], [1]) == [-600, -600]
    first, missing = store.batch_get_tensor_into(["x", "none"], [memory.address, memory.address + 1024], [500, 500])
    assert tuple(first.shape) == (4, 6) and missing is None


def test_tensor_is_cut_for_every_rank(store, torch, numbers, memory: Memory):
    assert store.put_tensor_with_tp("k", numbers, tp_size=3, split_dim=1) == 0
    assert store.batch_is_exist(["k", "k_tp_0", "k_tp_2", "k_tp_3"]) == [0, 1, 1, 0]
    assert torch.equal(store.get_tensor_with_tp("k", tp_rank=1, tp_size=3, split_dim=1), numbers.narrow(1, 2, 2).contiguous())
    header = parse_header(store.get("k_tp_1")[:HEADER_BYTES], store.get_size("k_tp_1"))
    assert (header.global_shape, header.shape) == ((4, 6), (4, 2))
    assert [(axis.kind, axis.rank, axis.count, axis.split_dim, axis.extent) for axis in header.axes] == [("tp", 1, 3, 1, 2)]
    assert store.put_tensor_with_tp("l", numbers, tp_size=5) == store.put_tensor_with_tp("l", numbers, tp_size=2, split_dim=2) == -600
    assert store.put_tensor_with_tp("whole", numbers) == 0 and torch.equal(store.get_tensor_with_tp("whole"), numbers)
    assert store.batch_put_tensor_with_tp(["a", "b"], [numbers, "text"], tp_size=2) == [0, -600]
    parts = store.batch_get_tensor_with_tp(["a", "b"], 1, 2)
    assert torch.equal(parts[0], numbers[2:]) and parts[1] is None
    assert store.pub_tensor_with_tp("c", numbers, ReplicateConfig(), tp_size=2) == 0
    assert store.batch_pub_tensor_with_tp(["d"], [numbers], tp_size=2) == [0]
    assert torch.equal(store.get_tensor_with_tp_into("c", memory.address, 1000, 0, 2), numbers[:2])
    assert torch.equal(store.batch_get_tensor_with_tp_into(["d"], [memory.address], [1000], 1, 2)[0], numbers[2:])
    assert store.put_tensor("all", numbers) == 0 and store.get_tensor_into("all", memory.address, 1000) is not None
    assert store.put_tensor_with_tp_from("e", memory.address, 400, tp_size=4) == 0
    assert torch.equal(store.get_tensor_with_tp("e", 3, 4), numbers[3:])
    assert store.batch_put_tensor_with_tp_from(["f", "g"], [memory.address, 0], [400, 400], tp_size=2) == [0, -600]


def parallel(*axes: tuple) -> TensorParallelism:
    made = TensorParallelism()
    made.axes = []
    for kind, rank, size, extra in axes:
        axis = ParallelAxis()
        axis.kind, axis.rank, axis.size = kind, rank, size
        if extra is not None:
            setattr(axis, {"tp": "split_dim", "ep": "expert_id", "pp": "stage_id", "dp": "split_dim"}[kind.lower()], extra)
        made.axes.append(axis)
    return made


def target(mode: str, parallelism: TensorParallelism | None = None) -> ReadTarget:
    made = ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


def test_shards_become_a_whole_again(store, torch, numbers, memory: Memory):
    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", numbers[2 * rank:2 * rank + 2], parallel(("TP", rank, 2, 0))) == 0
    assert store.batch_is_exist(["k_tp_0", "k_tp_1", "k__parallelism_manifest"]) == [1, 1, 1]
    assert torch.equal(store.get_tensor_with_parallelism("k", target("full")), numbers)
    assert torch.equal(store.get_tensor_with_parallelism("k", target("shard", parallel(("tp", 1, 2, 0)))), numbers[2:])
    assert torch.equal(store.get_tensor_with_parallelism("k", target("shard", parallel(("tp", 3, 4, 0)))), numbers[3:])
    assert torch.equal(store.get_tensor_with_parallelism("k", target("shard", parallel(("tp", 0, 4, 0)))), numbers[:1])
    assert torch.equal(store.get_tensor_with_parallelism("k", target("shard", parallel(("tp", 1, 2, 1)))), numbers.narrow(1, 3, 3).contiguous())
    assert torch.equal(store.get_tensor_with_parallelism("k", target("as_stored", parallel(("tp", 0, 2, 0)))), numbers[:2])
    assert store.get_tensor_with_parallelism("k") is None and store.get_tensor_with_parallelism("k", target("shard")) is None
    assert torch.equal(store.get_tensor_with_parallelism_into("k", memory.address, 1000, target("full")), numbers)
    assert store.get_tensor_with_parallelism_into("k", memory.address, 100, target("full")) is None
    whole, missing = store.batch_get_tensor_with_parallelism(["k", "none"], [target("full")] * 2)
    assert torch.equal(whole, numbers) and missing is None
    assert store.batch_get_tensor_with_parallelism(["k"], []) == [-600]


def test_several_axes_name_the_shard(store, torch, numbers):
    axes = parallel(("pp", 1, 2, 7), ("tp", 1, 3, 1), ("dp", 0, 2, None), ("ep", 2, 4, 5))
    assert store.put_tensor_with_parallelism("k", numbers, axes) == 0
    assert store.is_exist("k__dp_0of2__tp_1of3_sd1__ep_2of4_eid5__pp_1of2_sid7") == 1
    assert torch.equal(store.get_tensor_with_parallelism("k", target("shard", axes)), numbers.narrow(1, 2, 2).contiguous())


def test_writers_parts_become_a_whole(store, torch, numbers):
    class Part:
        size, split_dim = 2, 0

        def __init__(self, rank):
            self.rank = rank

    assert store.batch_put_tensor_with_parallelism(["k", "k"], [numbers, numbers], writer_partitions=[Part(0), Part(1)]) == [0, 0]
    assert torch.equal(store.get_tensor("k__writer_1of2_sd0"), numbers[2:])
    assert store.batch_is_exist(["k__writer_0of2_sd0", "k__writer_1of2_sd0", "k__writer_manifest"]) == [1, 1, 1]
    assert torch.equal(store.get_tensor_with_parallelism("k", target("full")), numbers)
    assert store.put_tensor_with_parallelism("k", numbers, parallel(("tp", 0, 2, 0)), None, Part(0)) == -600
    assert store.upsert_tensor_with_parallelism("k", numbers, writer_partition=Part(5)) == -600
    assert store.put_tensor_with_parallelism("k", numbers, writer_partition=5) == -600
    assert store.put_tensor_with_parallelism("odd", numbers[:3], writer_partition=Part(0)) == -600 and store.is_exist("odd__writer_manifest") == 0


def test_a_whole_is_there_once_every_writer_gave_its_part(store, torch, numbers, memory: Memory):
    class Part:
        size, split_dim = 3, 1

        def __init__(self, rank):
            self.rank = rank

    assert store.put_tensor("whole", numbers) == 0 and store.get_tensor_into("whole", memory.address, 1000) is not None
    for rank in (2, 0):
        assert store.put_tensor_with_parallelism_from("k", memory.address, 400, writer_partition=Part(rank)) == 0
    assert store.get_tensor_with_parallelism("k", target("full")) is None
    assert store.put_tensor_with_parallelism_from("k", memory.address, 400, writer_partition=Part(1)) == 0
    assert torch.equal(store.get_tensor_with_parallelism("k", target("full")), numbers)
    assert torch.equal(store.get_tensor_with_parallelism_into("k", memory.address + 1000, 400, target("full")), numbers)
    doubled = torch.tensor([[2 * one for one in row] for row in numbers.tolist()])
    for rank in range(3):
        assert store.upsert_tensor_with_parallelism("k", doubled, writer_partition=Part(rank)) == 0
    assert torch.equal(store.get_tensor_with_parallelism("k", target("full")), doubled)


@pytest.mark.parametrize("axes", [
    (), (("tp", 0, 2, None),), (("tp", 2, 2, 0),), (("tp", 0, 0, 0),), (("xx", 0, 1, None),), (("ep", 0, 1, None),), (("pp", 0, 1, None),),
    (("tp", 0, 2, 0), ("TP", 1, 2, 0)), (("dp", 0, 1, 1),), (("tp", 0, 2, 5),), (("tp", 0, 5, 0), ("dp", 0, 1, None))], ids=str)
def test_axes_that_make_no_sense_are_refused(store, numbers, axes):
    if axes and axes[0][0] == "xx":
        made = TensorParallelism()
        made.axes = [ParallelAxis()]
        made.axes[0].kind = "xx"
    else:
        made = parallel(*axes)
    assert store.put_tensor_with_parallelism("k", numbers, made) == -600


def test_other_forms_of_writing(store, torch, numbers, memory: Memory):
    assert store.put_tensor("whole", numbers) == 0 and store.get_tensor_into("whole", memory.address, 1000) is not None
    axes = parallel(("tp", 0, 1, 0))
    assert store.put_tensor_with_parallelism_from("a", memory.address, 400, axes) == 0
    assert store.batch_put_tensor_with_parallelism_from(["b", "c"], [memory.address, 0], [400, 400]) == [0, -600]
    assert store.upsert_tensor_with_parallelism_from("b", memory.address, 400) == 0
    assert store.batch_upsert_tensor_with_parallelism_from(["b"], [memory.address], [400], [axes]) == [0]
    assert store.batch_upsert_tensor_with_parallelism(["b"], [numbers.t()]) == [0] and tuple(store.get_tensor("b").shape) == (6, 4)
    assert torch.equal(store.get_tensor_with_parallelism("a", target("full")), numbers)


def test_numpys_integers_are_addresses(store, torch, numbers, memory: Memory):
    assert store.put_tensor("k", numbers) == 0
    address, size = np.uint64(memory.address), np.int64(400)
    assert torch.equal(store.get_tensor_into("k", address, size), numbers)
    assert store.put_tensor_from("a", address, size) == 0 and store.batch_upsert_tensor_from(["a"], [address], [size]) == [0]
    assert store.put_tensor_with_tp_from("b", address, size, tp_size=2) == 0
    assert store.put_tensor_with_parallelism_from("c", address, size) == 0
    assert torch.equal(store.get_tensor_with_parallelism_into("c", address, size), numbers)


class TensorWithoutMemory:
    """As sparse ones, and those on the device "meta", answer."""

    def __init__(self, dtype, problem):
        self.dtype, self.shape, self._problem = dtype, (4, 2), problem

    def contiguous(self):
        raise self._problem

    def narrow(self, *_):
        raise self._problem


@pytest.mark.parametrize("problem", [RuntimeError("sparse"), NotImplementedError("meta")], ids=str)
def test_a_tensor_without_memory_is_refused_alone(store, torch, numbers, problem):
    odd = TensorWithoutMemory(numbers.dtype, problem)
    assert store.put_tensor("k", odd) == store.put_tensor_with_tp("k", odd, tp_size=2) == -600
    assert store.batch_put_tensor(["a", "k", "b"], [numbers, odd, numbers]) == [0, -600, 0]
    assert store.batch_is_exist(["a", "k", "b"]) == [1, 0, 1]


def test_a_tensor_that_is_negative_by_a_bit_is_stored_as_it_looks(store, torch, numbers):
    if hasattr(torch, "_neg_view"):
        negative = torch._neg_view(numbers)
    else:
        negative = torch.tensor(numbers.tolist())
        negative.is_neg, negative.resolve_neg = lambda: True, lambda: torch.tensor([[-one for one in row] for row in numbers.tolist()])
    assert store.put_tensor("k", negative) == 0
    assert store.get_tensor("k").tolist() == [[-one for one in row] for row in numbers.tolist()]


def test_read_target_knows_its_modes():
    with pytest.raises(RuntimeError):
        ReadTarget().mode = "half"
    assert ReadTarget().mode == "as_stored" and ReadTarget().parallelism is None
    assert target("FULL").mode == "full"


def test_an_address_without_memory_is_refused(store, torch, numbers, memory: Memory):
    class Whole:
        rank, size, split_dim = 0, 1, 0

    hole = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(hole))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(start + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    for address in (-1, 0, 5, 1 << 47, (1 << 64) - 1, 1 << 64, start + mmap.PAGESIZE, start + mmap.PAGESIZE - 8):
        for write in (store.put_tensor_from, store.upsert_tensor_from, store.put_tensor_with_tp_from):
            assert write("k", address, 400) == -600, address
        for write in (store.put_tensor_with_parallelism_from, store.upsert_tensor_with_parallelism_from):
            assert write("k", address, 400, writer_partition=Whole()) == -600, address
        assert store.batch_put_tensor_from(["k"], [address], [400]) == store.batch_upsert_tensor_from(["k"], [address], [400]) == [-600]
    # The header is there, not all of the elements are.
    assert store.put_tensor("whole", numbers) == 0 and store.get_tensor_into("whole", memory.address, 1000) is not None
    address = start + mmap.PAGESIZE - HEADER_BYTES - 8
    ctypes.memmove(address, memory.address, HEADER_BYTES + 8)
    assert store.put_tensor_with_tp_from("k", address, 400) == -600
    assert store.put_tensor_with_parallelism_from("k", address, 400, writer_partition=Whole()) == -600
    assert torch.equal(store.get_tensor_with_parallelism_into("whole", memory.address + 1000, 400, target("full")), numbers)
    for bad in (-1, 5, 1 << 64, address):
        assert store.get_tensor_with_parallelism_into("whole", bad, 400, target("full")) is None, bad


def test_a_descriptor_is_no_name_of_a_file(store, numbers, tmp_path):
    assert store.put_tensor("k", numbers) == 0
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(TypeError):
        store.save_tensor_to_safetensor("k", descriptor)
    with pytest.raises(TypeError):
        store.load_tensor_from_safetensor("k", descriptor)
    os.close(descriptor)  # which was nobody else's to close
    path = tmp_path / "tensor"
    assert store.save_tensor_to_safetensor("k", path) == 0 and store.load_tensor_from_safetensor(file_name=path) is not None


def test_safetensors_files_are_written_and_read(store, torch, numbers, tmp_path):
    path = str(tmp_path / "file.safetensors")
    assert store.put_tensor("k", numbers) == 0
    assert store.save_tensor_to_safetensor("k", path) == 0
    assert store.save_tensor_to_safetensor("none", path) == -1100
    assert store.save_tensor_to_safetensor("k", str(tmp_path / "no" / "folder")) == -1103
    assert torch.equal(store.load_tensor_from_safetensor("k", path), numbers)
    assert torch.equal(store.load_tensor_from_safetensor("other name", path), numbers)
    assert torch.equal(store.load_tensor_from_safetensor(file_name=path), numbers)
    assert torch.equal(store.get_tensor("other name"), numbers) and torch.equal(store.get_tensor(path), numbers)


def safetensor(rest: str, data_bytes: int) -> bytes:
    text = ('{"k":{"dtype":"F32",' + rest + "}}").encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 4) + b"nope",
                                     struct.pack("<Q", 66) + b'{"k":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(66),
                                     struct.pack("<Q", 66) + b'{"k":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}'.ljust(66),
                                     struct.pack("<Q", 66) + b'{"k":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}'.ljust(66),
                                     safetensor('"shape":[-1,-4],"data_offsets":[0,16]', 16), safetensor('"shape":[-1],"data_offsets":[0,0]', 0),
                                     safetensor('"shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]', 4), safetensor('"shape":["a"],"data_offsets":[0,4]', 4),
                                     safetensor('"shape":[288230376151711744],"data_offsets":[0,1152921504606846976]', 4),
                                     safetensor('"shape":[1.0],"data_offsets":[0,4]', 4), safetensor('"shape":[1],"data_offsets":[0,1,2]', 4),
                                     safetensor('"shape":' + "[" * 100_000, 4)])
def test_bad_safetensors_files_give_none(store, tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert store.load_tensor_from_safetensor("k", str(path)) is None
    assert store.load_tensor_from_safetensor("k", str(tmp_path / "none")) is None


def test_serialized_form_is_open_to_other_modules(store, torch, numbers):
    header, address, length, owner = module._serialize_tensor(numbers)
    assert store.put_tensor("k", numbers) == 0
    assert store.get("k") == header + ctypes.string_at(address, length) and owner is not None
    assert torch.equal(module._deserialize_tensor(store.get("k")), numbers)
    with pytest.raises(ValueError):
        module._serialize_tensor("text")


def test_cuda_forms_are_for_tensors_of_gpus(store):
    assert store.get_tensor_into_cuda("k", None) == -1012 and store.batch_get_tensor_into_cuda(["k", "l"], [None, None]) == [-1012, -1012]
