# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that is not there: the libcuda that the C++ tests build, used as a program with a GPU would use the driver. Its addresses trap who
touches them by CPU. For interpreters of their own: what a process has loaded stays."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def library_path() -> str:
    """Where it was built; otherwise it is built now."""
    found = os.environ.get("MC_FAKE_LIBCUDA") or next((str(path) for path in sorted(_ROOT.glob("build/*/lib/fake_cuda/libcuda.so.1"))), None)
    if found:
        return found
    to = Path(tempfile.mkdtemp(prefix="fake-cuda-")) / "libcuda.so.1"
    sources = [str(path) for path in sorted((_ROOT / "tests/device/fake_libcuda").glob("*.cpp"))]
    subprocess.run(["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-I", str(_ROOT / "src"), "-Wl,-soname,libcuda.so.1",
                    "-o", str(to), *sources], check=True)
    os.environ["MC_FAKE_LIBCUDA"] = str(to)  # for those we start
    return str(to)


class FakeCuda:
    def __init__(self) -> None:
        self.library = ctypes.CDLL(library_path(), mode=ctypes.RTLD_GLOBAL)
        self.library.fake_cuda_count.restype = ctypes.c_uint64
        self._context = ctypes.c_void_p()
        self.library.fake_cuda_application(1)
        self._must("cuInit", 0)
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.library.fake_cuda_application(0)

    def _must(self, name: str, *arguments) -> None:
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name} answers {status}"

    def _call(self, name: str, *arguments) -> None:
        """As the program itself: not counted."""
        popped = ctypes.c_void_p()
        self.library.fake_cuda_application(1)
        try:
            self._must("cuCtxPushCurrent_v2", self._context)
            self._must(name, *arguments)
            self._must("cuCtxPopCurrent_v2", ctypes.byref(popped))
        finally:
            self.library.fake_cuda_application(0)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: bytes) -> int:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        return address

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def pin(self, address: int, size: int) -> None:
        """cudaHostRegister(): an error if somebody has done so before."""
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), 0)

    def unpin(self, address: int) -> None:
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def count(self, what: str) -> int:
        return self.library.fake_cuda_count(what.encode())
