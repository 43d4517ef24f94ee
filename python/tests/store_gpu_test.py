# SPDX-License-Identifier: Apache-2.0
"""Values from and into memory of a GPU: every call of the store that takes addresses or tensors. Each test runs in an interpreter of its own, since
libcuda stays loaded."""

import pytest

from fake_cuda import library_path
from helpers import run_python
from store_helpers import Master

BEGIN = """
import ctypes, sys, time
import numpy as np
from fake_cuda import FakeCuda
from store_helpers import MiB, open_store, random_bytes

cuda = FakeCuda()
here, registered = sys.argv[2] == "here", sys.argv[3] == "registered"
# The values lie in the same process, or in that of the master's other client, whose memory is mapped.
lender = None if here else open_store(sys.argv[1])
store = open_store(sys.argv[1], segment=64 * MiB if here else 0)
SIZE = 8 * MiB
gpu = cuda.allocate(SIZE)
if registered:
    assert store.register_buffer(gpu, SIZE) == 0
host = np.zeros(SIZE, np.uint8)

def end():
    if registered:
        assert store.unregister_buffer(gpu) == 0
    cuda.free(gpu)
    assert store.close() == 0
    assert lender is None or lender.close() == 0
"""


@pytest.fixture(scope="module")
def master():
    process = Master("--default_kv_lease_ttl=2000")
    yield process
    process.stop()


@pytest.fixture(params=["here", "near"])
def where(request):
    return request.param


@pytest.fixture(params=["registered", "plain"])
def run(request, master, where):
    def run_it(code: str, env: dict[str, str] | None = None) -> None:
        run_python(BEGIN + code + "\nend()\n", master.address, where, request.param, env={"MC_FAKE_LIBCUDA": library_path(), **(env or {})})

    return run_it


def test_values_go_from_it_and_to_it(run):
    run("""
for length in (1, 4096, 70_000, 3 * MiB + 5):
    value = random_bytes(length)
    assert store.upsert_from("k", cuda.write(gpu + 3, value), length) == 0
    assert store.get("k") == value
    assert store.get_into("k", gpu + 4 * MiB, length + 10) == length
    assert cuda.read(gpu + 4 * MiB, length) == value
assert store.remove("k", force=True) == 0 and store.put_from("k", gpu + 3, length) == 0 and store.get("k") == value
assert store.get_into("k", gpu, length - 1) == -600 and store.get_into("none", gpu, 10) == -704
metadata = np.frombuffer(b"metadata", np.uint8).copy()
assert store.put_from_with_metadata("with", gpu + 3, metadata.ctypes.data, 1000, 8) == 0
assert store.get("with") == b"metadata" + value[:1000]
store.remove_all(force=True)
""")


def test_batches_and_scattered_pieces_go_together(run):
    run("""
count, size = 30, 20_000
values = [random_bytes(size, i) for i in range(count)]
keys = [f"k{i}" for i in range(count)]
at = [cuda.write(gpu + i * 32768, value) for i, value in enumerate(values)]
assert store.batch_put_from(keys, at, [size] * count) == [0] * count
assert store.get_batch(keys) == values
into = [gpu + 4 * MiB + i * 32768 for i in range(count)]
assert store.batch_get_into([*keys[1:], "none"], into, [size] * count) == [size] * (count - 1) + [-704]
assert [cuda.read(address, size) for address in into[:-1]] == values[1:]
assert store.batch_upsert_from(keys[:2], at[1:3], [size] * 2) == [0, 0] and store.get(keys[0]) == values[1]

# One value of pieces of both, in another order.
whole = random_bytes(count * size, 99)
pieces = []
for i in range(count):
    part = whole[i * size:(i + 1) * size]
    if i % 3 == 1:
        host[i * size:(i + 1) * size] = np.frombuffer(part, np.uint8)
        pieces.append(host.ctypes.data + i * size)
    else:
        pieces.append(cuda.write(gpu + (count - i) * 65536, part))
assert store.batch_put_from_multi_buffers(["whole"], [pieces], [[size] * count]) == [0]
assert store.get("whole") == whole
host[:] = 0
for i in range(count):
    if i % 3 != 1:
        cuda.write(pieces[i], bytes(size))
assert store.batch_get_into_multi_buffers(["whole"], [pieces], [[size] * count]) == [len(whole)]
got = b"".join(host[i * size:(i + 1) * size].tobytes() if i % 3 == 1 else cuda.read(pieces[i], size) for i in range(count))
assert got == whole
store.remove_all(force=True)
""")


def test_parts_and_sessions(run):
    run("""
value = random_bytes(500_000)
cuda.write(gpu, value)
assert store.batch_put_session_start(["k"], [len(value)]) == [0]
cut = 123_456
assert store.batch_put_from_multi_buffer_ranges(["k"], [[gpu, gpu + cut]], [[cut, len(value) - cut]], [[0, cut]]) == [len(value)]
assert store.batch_put_session_end(["k"]) == [0] and store.get("k") == value

assert store.batch_get_session_start(["k"]) == [0]
into = gpu + 4 * MiB
assert store.batch_get_into_multi_buffer_ranges(["k"], [[into, into + MiB]], [[200_000, 7]], [[99, 400_000]]) == [200_007]
assert cuda.read(into, 200_000) == value[99:200_099] and cuda.read(into + MiB, 7) == value[400_000:400_007]
assert store.batch_get_into_multi_buffer_ranges(["k"], [[0x1000]], [[100]], [[0]]) == [-600]  # no memory, and no crash
assert store.batch_get_session_end(["k"]) == 0

ranges = store.get_into_ranges([gpu], [["k"]], [[[4 * MiB, 10]]], [[[65_530, 0]]], [[[140_000, 5]]])
if registered:
    assert ranges == [[[140_000, 5]]]
    assert cuda.read(gpu + 4 * MiB, 140_000) == value[65_530:205_530] and cuda.read(gpu + 10, 5) == value[:5]
else:
    assert ranges == [[[-600, -600]]]  # it is for registered memory, of any kind
store.remove_all(force=True)
""")


def test_memory_that_is_gone_is_an_error(run):
    run("""
value = random_bytes(200_000)
other = cuda.allocate(MiB)
assert not registered or store.register_buffer(other, MiB) == 0
assert store.put_from("k", cuda.write(other, value), len(value)) == 0
cuda.free(other)
assert store.put_from("l", other, len(value)) < 0 and store.is_exist("l") == 0
assert store.get_into("k", other, len(value)) < 0
assert store.batch_put_from(["good", "bad"], [cuda.write(gpu, value), other], [len(value)] * 2)[1] < 0
assert store.get("k") == value and store.put("m", b"1") == 0
mmap = ctypes.CDLL(None).mmap
mmap.restype, mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
forbidden = mmap(0, MiB, 0, 0x22, -1, 0)  # what follows `other` may be anybody's; this is nobody's
for wild in (0x1000, (1 << 47) - 4096, forbidden):
    codes = store.put_from("n", wild, 100), store.get_into("k", wild, len(value))
    assert codes == (-600, -600), (hex(wild), codes)
if registered:
    store.unregister_buffer(other)
store.remove_all(force=True)
""")


def test_a_pool_of_this_host_is_pinned_and_nothing_that_users_have(run, where):
    run("""
from mooncake.store import MooncakeHostMemAllocator
value = random_bytes(3 * MiB)
cuda.write(gpu, value)
end_at = time.monotonic() + 60
while cuda.count("calls:cuMemHostRegister_v2") == 0:
    assert store.upsert_from("k", gpu, len(value)) == 0
    assert time.monotonic() < end_at
while True:  # once it is pinned a value crosses at one go
    before = cuda.count("copies")
    assert store.upsert_from("k", gpu, len(value)) == 0
    if cuda.count("copies") - before == 1:
        break
    assert time.monotonic() < end_at
bytes_before = cuda.count("bytes")
assert store.get_into("k", gpu + 4 * MiB, len(value)) == len(value)
assert cuda.count("bytes") - bytes_before == len(value) and cuda.read(gpu + 4 * MiB, len(value)) == value

users = MooncakeHostMemAllocator()
mine = users.alloc(MiB)
assert store.register_buffer(mine, MiB) == 0
for _ in range(3):
    assert store.get_into("k", gpu, len(value)) == len(value) and store.put_from("m", mine, MiB) == 0
cuda.pin(mine, MiB)  # cudaHostRegister() of the user's
cuda.unpin(mine)
assert store.unregister_buffer(mine) == 0
users.free(mine)
store.remove_all(force=True)
old_end = end
def end():
    old_end()
    assert cuda.count("calls:cuMemHostUnregister") == cuda.count("calls:cuMemHostRegister_v2") > 0
""")


def test_without_a_quota_nothing_is_pinned(run):
    run("""
value = random_bytes(MiB)
cuda.write(gpu, value)
for _ in range(20):
    assert store.upsert_from("k", gpu, MiB) == 0
assert cuda.count("calls:cuMemHostRegister_v2") == 0 and store.get("k") == value
store.remove_all(force=True)
""", env={"MC_CUDA_PIN_MAX": "0"})


def test_tensors(run):
    run("""
import types
import fake_torch
synchronized = []
class Stream:
    def synchronize(self):
        synchronized.append(1)
fake_torch.cuda = types.SimpleNamespace(current_stream=lambda device: Stream())
sys.modules["torch"] = fake_torch

class GpuTensor:
    \"\"\"As much of a tensor on a GPU as is used: its elements cannot be touched.\"\"\"
    device = types.SimpleNamespace(type="cuda", index=0)
    def __init__(self, address, shape, dtype):
        self.address, self.shape, self.dtype = address, shape, dtype
    def contiguous(self):
        return self
    def is_contiguous(self):
        return True
    def data_ptr(self):
        return self.address

numbers = np.arange(60_000, dtype=np.float32).reshape(300, 200)
cuda.write(gpu + 512, numbers.tobytes())
tensor = GpuTensor(gpu + 512, numbers.shape, numbers.dtype)
assert store.put_tensor("t", tensor) == 0 and synchronized
assert np.array_equal(store.get_tensor("t").array, numbers)
assert store.batch_put_tensor(["u", "v"], [tensor, fake_torch.FakeTensor(numbers)]) == [0, 0]
assert store.get("u") == store.get("v")

into = GpuTensor(gpu + 4 * MiB, numbers.shape, numbers.dtype)
length = len(store.get("t"))
assert store.get_tensor_into_cuda("t", into) == length
assert cuda.read(into.address, numbers.nbytes) == numbers.tobytes()
cuda.write(into.address, bytes(numbers.nbytes))
other = GpuTensor(into.address, (200, 300), numbers.dtype)
assert store.batch_get_tensor_into_cuda(["t", "none", "t"], [other, into, fake_torch.FakeTensor(numbers)]) == [-600, -704, -1012]
assert cuda.read(into.address, numbers.nbytes) == bytes(numbers.nbytes)
assert store.put("text", b"x" * length) == 0 and store.get_tensor_into_cuda("text", into) == -600
store.remove_all(force=True)
""")
