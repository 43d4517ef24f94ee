# SPDX-License-Identifier: Apache-2.0
"""Transfers in the order of CUDA streams, over a stand-in for the driver; and what a process without CUDA pays for that: nothing."""

from pathlib import Path

import pytest
from helpers import run_python

FAKE_LIBCUDA = Path(__file__).resolve().parents[2] / "build/dev/lib/fake_cuda/libcuda.so.1"

# A program with a GPU: its driver, a stream, memory of the GPU and of the host, and an engine that transfers to itself or to a second one.
GPU = """
import ctypes, os, sys
from types import SimpleNamespace
cuda = ctypes.CDLL(os.environ["FAKE_LIBCUDA"], mode=ctypes.RTLD_GLOBAL)
u64, pointer = ctypes.c_uint64, ctypes.c_void_p
cuda.fake_cuda_count.restype = u64
count = lambda what: cuda.fake_cuda_count(what.encode())
def must(name, *arguments):
    cuda.fake_cuda_application(1)
    code = getattr(cuda, name)(*arguments)
    cuda.fake_cuda_application(0)
    assert code == 0, (name, code)
context, stream, event, memory = pointer(), pointer(), pointer(), u64()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
must("cuCtxPushCurrent_v2", context)
must("cuStreamCreate", ctypes.byref(stream), 1)
must("cuEventCreate", ctypes.byref(event), 2)
must("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))
gpu, host = memory.value, (ctypes.c_ubyte * 4096)()
sources = [(ctypes.c_ubyte * 4096)(*[value] * 4096) for value in range(4)]
def put(value, where=stream):
    must("cuMemcpyHtoDAsync_v2", memory, sources[value], ctypes.c_size_t(4096), where)
def drain(where=stream):
    must("cuStreamSynchronize", where)
def hold(on):
    cuda.fake_cuda_hold(0, int(on))
put(1)
drain()

from mooncake.engine import TransferEngine
engine, peer = TransferEngine(), TransferEngine()
for one in (engine, peer):
    assert one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
assert engine.register_memory(gpu, 4096) == 0
assert peer.register_memory(ctypes.addressof(host), 4096) == 0
target, there = f"127.0.0.1:{peer.get_rpc_port()}", ctypes.addressof(host)
came = lambda: set(bytes(host))
"""


def run(program: str, expect: int = 0, **environment: str) -> str:
    done = run_python(GPU + program, env={"FAKE_LIBCUDA": str(FAKE_LIBCUDA), **environment}, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


POINTS = {
    "a handle": "stream.value",
    "a stream": "SimpleNamespace(cuda_stream=stream.value, device_index=0)",
    "a stream with a device": "SimpleNamespace(cuda_stream=stream.value, device=SimpleNamespace(index=0))",
    "the protocol of streams": "type('S', (), {'__cuda_stream__': lambda self: (0, stream.value)})()",
    "an event": "SimpleNamespace(cuda_event=event.value)",
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_transfers_wait_for_work_however_it_is_named(point):
    run(f"""
hold(True)
put(2)
must("cuEventRecord", event, stream)
after = {point}
plan = engine.prepare(target, [gpu], [there], [4096])
batches = [engine.batch_transfer_async_write(target, [gpu], [there], [4096], after=after), engine.transfer_submit_write(target, gpu, there, 4096, after=after),
           engine.batch_transfer_async(target, [gpu], [there], [4096], 1, after=after), plan.submit_write(after=after)]
assert all(batches), engine.last_error()
assert [engine.transfer_check_status(batch) for batch in batches] == [0] * 4 and came() == {{0}}
hold(False)
assert engine.get_batch_transfer_status(batches) == 0 and came() == {{2}}
put(3)
assert engine.transfer_sync_write(target, gpu, there, 4096, after=stream.value) == 0 and came() == {{3}}
put(1)
assert engine.batch_transfer_sync_write(target, [gpu], [there], [4096], after=stream.value) == 0 and came() == {{1}}
put(2)
assert plan.write(after=stream.value) == 0 and came() == {{2}}
""")


def test_an_event_loop_waits_for_work_too():
    run("""
import asyncio
async def main():
    hold(True)
    put(2)
    moving = asyncio.ensure_future(engine.transfer_async(target, [gpu], [there], [4096], 1, after=stream.value))
    while count("calls:cuEventQuery") < 5:
        await asyncio.sleep(0)
    assert came() == {0} and not moving.done()
    hold(False)
    assert await moving == 0 and came() == {2}
    hold(True)
    put(3)
    moving = asyncio.ensure_future(engine.transfer_async(target, [gpu], [there], [4096], 1, after=stream.value))
    await asyncio.sleep(0)
    moving.cancel()
    try:
        await moving
    except asyncio.CancelledError:
        hold(False)
    assert came() == {2}
asyncio.run(main())
""")


def test_what_is_no_work_is_said_to_be_none():
    run("""
for wrong in ("stream", 1.5, object(), -1):
    try:
        engine.batch_transfer_async_write(target, [gpu], [there], [4096], after=wrong)
        assert False, wrong
    except (TypeError, OverflowError):
        pass
assert engine.batch_transfer_async_write(target, [gpu], [there], [4096], after=0xdead000) == 0 and "stream" in engine.last_error()
assert engine.transfer_sync_write(target, gpu, there, 4096, after=0xdead000) == -1
""")


def test_transfers_on_a_stream_take_their_turn_there():
    run("""
hold(True)
put(2)
assert engine.transfer_write_on_cuda(target, gpu, there, 4096, stream.value) is None
put(3)
assert engine.batch_transfer_write_on_cuda(target, [gpu, gpu + 2048], [there, there + 2048], [2048, 2048], stream_ptr=stream.value, transport_hint="") is None
assert came() == {0}
hold(False)
drain()
assert came() == {3}
host[:] = [1] * 4096
engine.transfer_read_on_cuda(target, gpu, there, 4096)
engine.batch_transfer_read_on_cuda(target, [gpu], [there], [4096], 0)
drain(None)
engine.transfer_sync_write(target, gpu, there, 4096)
assert came() == {1}
""")


def test_what_cannot_be_put_on_a_stream_is_raised():
    run("""
def raises(*arguments, call=engine.transfer_write_on_cuda):
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    assert False, arguments
raises("127.0.0.1:1", gpu, there, 4096, stream.value)
raises(target, [gpu], [there, there], [4096], stream.value, call=engine.batch_transfer_write_on_cuda)
must("cuStreamBeginCapture_v2", stream, 1)
assert "captured" in raises(target, gpu, there, 4096, stream.value)
must("cuStreamEndCapture", stream, ctypes.byref(pointer()))
engine.close()
raises(target, gpu, there, 4096, stream.value)
assert count("captured") == 0
""")


def test_without_cuda_it_is_raised():
    done = run_python("""
from mooncake.engine import TransferEngine
engine = TransferEngine()
memory = bytearray(64)
for start in (False, True):
    if start:
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    for call in (engine.transfer_write_on_cuda, engine.transfer_read_on_cuda):
        try:
            call("127.0.0.1:1", memory, 4096, 64)
            assert False
        except RuntimeError as error:
            print("CUDA" in str(error))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_a_failure_on_a_stream_ends_the_process():
    run("""
engine.transfer_write_on_cuda(target, gpu, there + (1 << 30), 4096, stream.value)
drain()
while True:
    pass
""", expect=1)


def test_a_failure_on_a_stream_may_be_raised_later():
    run("""
engine.transfer_write_on_cuda(target, gpu, there + (1 << 30), 4096, stream.value)
drain()
try:
    engine.transfer_write_on_cuda(target, gpu, there, 4096, stream.value)
    assert False
except RuntimeError as error:
    assert "earlier" in str(error)
engine.transfer_write_on_cuda(target, gpu, there, 4096, stream.value)
drain()
assert came() == {1}
""", MC_CUDA_ON_STREAM_FAILURE="continue")


def test_a_gpu_is_a_feature_once_somebody_uses_it():
    run("""
import mooncake
feature = mooncake.features()["cuda"]
assert feature and "CUDA 13.0, 1 GPUs, 1 in use" in feature.reason, feature
""")


# ---- without a GPU


def test_a_process_without_cuda_never_looks_for_it(tmp_path):
    """Neither importing nor using the host's paths opens the driver's library, also where it could be found."""
    (tmp_path / "libcuda.so.1").symlink_to(FAKE_LIBCUDA)
    done = run_python("""
import mooncake, mooncake.store
from mooncake.engine import TransferEngine
engine, memory = TransferEngine(), bytearray(b"x" * 4096)
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
assert engine.register_memory(memory) == 0
other = bytearray(4096)
target = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.transfer_sync_read(target, other, engine.get_first_buffer_address(target), 4096) == 0 and other == memory
batch = engine.batch_transfer_async_read(target, [other], [engine.get_first_buffer_address(target)], [4096])
assert engine.get_batch_transfer_status([batch]) == 0
assert mooncake.features()["nvlink_allocator"]
engine.close()
maps = open("/proc/self/maps").read()
print("libcuda" in maps, "nvlink_allocator" in maps)
threads = [open(f"/proc/self/task/{task}/comm").read() for task in __import__("os").listdir("/proc/self/task")]
print([name for name in threads if "order" in name])
""", env={"LD_LIBRARY_PATH": str(tmp_path)}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["False False", "[]"]
