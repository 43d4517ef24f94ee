# SPDX-License-Identifier: Apache-2.0
"""mooncake.allocator over a stand-in for torch, and nvlink_allocator.so over a stand-in for the CUDA driver."""

import ctypes
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import mooncake
import pytest

FAKE_LIBCUDA = Path(__file__).resolve().parents[2] / "build/dev/lib/fake_cuda/libcuda.so.1"


def run(program: str, expect: int = 0, **environment: str) -> str:
    """A process of its own: which libraries are loaded, and how often, is a matter of the whole process."""
    import os

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "FAKE_LIBCUDA": str(FAKE_LIBCUDA), **environment})
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


class Pluggable:
    made = 0

    def __init__(self, path: str, allocate: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self.path, self.functions = path, (getattr(library, allocate), getattr(library, free))
        Pluggable.made += 1

    def allocator(self):
        return self.functions


@pytest.fixture
def allocator(monkeypatch):
    """The module with a torch that has what it uses, and nothing kept from other tests."""
    Pluggable.made = 0
    torch = SimpleNamespace(cuda=SimpleNamespace(memory=SimpleNamespace(CUDAPluggableAllocator=Pluggable), current_device=lambda: 3))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "mooncake.allocator", raising=False)
    import mooncake.allocator as module

    yield module
    sys.modules.pop("mooncake.allocator", None)
    if hasattr(mooncake, "allocator"):
        del mooncake.allocator


def test_without_torch_it_is_an_import_error():
    assert run("""
        import sys
        sys.modules["torch"] = None
        try:
            import mooncake.allocator
        except ImportError as error:
            print("torch" in str(error))
    """).strip() == "True"


def test_one_allocator_for_each_device_however_it_is_called(allocator):
    get = allocator.NVLinkAllocator.get_allocator
    first = get("cuda:0")
    assert get(0) is first and get("0") is first and get(SimpleNamespace(type="cuda", index=0)) is first
    assert get("cuda:1") is not first
    assert get("cuda") is get(3) is get(SimpleNamespace(type="cuda", index=None))
    assert first.path == str(Path(mooncake.__file__).parent / "nvlink_allocator.so")
    assert all(first.allocator())


@pytest.mark.parametrize("device, error", [("cpu", ValueError), ("cuda:x", ValueError), ("", ValueError), (-1, ValueError), ("cuda:-1", ValueError),
                                           (None, TypeError), (1.5, TypeError), (SimpleNamespace(type="cpu", index=None), ValueError)])
def test_what_is_no_device_is_said_to_be_none(allocator, device, error):
    with pytest.raises(error):
        allocator.NVLinkAllocator.get_allocator(device)


def test_threads_that_ask_at_once_get_the_same(allocator):
    found, barrier = [], threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(allocator.NVLinkAllocator.get_allocator("cuda:0"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and Pluggable.made == 1


def test_without_the_library_the_error_says_which_package_has_it(allocator, monkeypatch):
    def missing(name: str, message: str) -> str:
        raise ImportError(message)

    monkeypatch.setattr(allocator, "get_mooncake_so_path", missing)
    with pytest.raises(ImportError, match="nvlink_allocator.so of mooncake-transfer-engine >= 0.3.3.post2"):
        allocator.NVLinkAllocator.get_allocator("cuda:0")
    assert allocator.NVLinkAllocator.detect_mem_backend() == allocator.MemoryBackend.UNSUPPORTED


def test_a_torch_without_cuda_says_so_itself(allocator, monkeypatch):
    def unknown(*_: str) -> None:
        raise AttributeError("module 'torch._C' has no attribute '_cuda_customAllocator'")

    monkeypatch.setattr(allocator.torch.cuda.memory, "CUDAPluggableAllocator", unknown)
    with pytest.raises(AttributeError):
        allocator.NVLinkAllocator.get_allocator("cuda:0")


def test_barex_is_found_where_its_vendor_puts_it(allocator, monkeypatch, tmp_path):
    with pytest.raises(ImportError, match="BarexAllocator requires libaccl_barex.so"):
        allocator.BarexAllocator.get_allocator("cuda:0")
    library = tmp_path / "libaccl_barex.so"
    library.write_bytes(b"")
    monkeypatch.setattr(allocator.BarexAllocator, "_places", (str(tmp_path / "nowhere.so"), str(library)))
    made = []
    monkeypatch.setattr(allocator.torch.cuda.memory, "CUDAPluggableAllocator", lambda *arguments: made.append(arguments))
    allocator.BarexAllocator.get_allocator("cuda:0")
    assert made == [(str(library), "u2mm_alloc_wrapper_with_stream", "u2mm_free_wrapper_with_stream")]


def test_paths_and_probes_of_libraries_that_are_not_there():
    from mooncake.fabric_allocator_utils import get_mooncake_so_path, probe_allocator_backend

    with pytest.raises(ImportError, match="^it is not here$"):
        get_mooncake_so_path("nothing.so", "it is not here")
    assert probe_allocator_backend("/nowhere/nothing.so", "x", ctypes.c_int, "none") == "none"
    library = get_mooncake_so_path("nvlink_allocator.so", "")
    assert probe_allocator_backend(library, "no_such_function", ctypes.c_int, -7) == -7


# ---- the library itself

LIBRARY = """
    import ctypes, os
    from mooncake.fabric_allocator_utils import get_mooncake_so_path, probe_allocator_backend
    path = get_mooncake_so_path("nvlink_allocator.so", "")
    cuda = ctypes.CDLL(os.environ["FAKE_LIBCUDA"]) if os.environ.get("FAKE_LIBCUDA") else None
    library = ctypes.CDLL(path)
    library.mc_allocator_malloc.restype = library.mc_nvlink_malloc.restype = ctypes.c_void_p
    library.mc_allocator_malloc.argtypes = library.mc_nvlink_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.mc_allocator_free.argtypes = library.mc_nvlink_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.mc_allocator_free.restype = library.mc_nvlink_free.restype = None
    malloc, free = library.mc_allocator_malloc, library.mc_allocator_free
    if cuda:
        cuda.fake_cuda_count.restype = ctypes.c_uint64
    count = lambda what: cuda.fake_cuda_count(what.encode())
"""


def test_the_library_loads_and_answers_without_a_driver():
    assert run(LIBRARY + """
    print(library.mc_allocator_probe(0), malloc(2 << 20, 0, None), probe_allocator_backend(path))
    free(4096, 4096, 0, None)
    """, FAKE_LIBCUDA="").split() == ["2", "None", "2"]


def test_the_library_allocates_and_frees_by_both_names():
    out = run(LIBRARY + """
    first = malloc(20 << 20, 0, None)
    free(first, 20 << 20, 0, None)
    second = library.mc_nvlink_malloc(2 << 20, 0, None)
    library.mc_nvlink_free(second, 2 << 20, 0, None)
    print(bool(first), bool(second), malloc(0, 0, None), malloc(-5, 0, None), malloc(1 << 20, 9, None))
    print(count("live:handles"), library.mc_allocator_probe(0), library.mc_probe_fabric_support(0))
    cuda.fake_cuda_attribute(0, 128, 1)
    print(library.mc_allocator_probe(0), library.mc_probe_fabric_support(0))
    """)
    assert out.split() == ["True", "True", "None", "None", "None", "0", "0", "0", "1", "1"]


@pytest.mark.parametrize("cache, kept", [("0", 0), (str(20 << 20), 20 << 20), ("nonsense", 60 << 20)])
def test_the_library_keeps_as_much_as_the_environment_says(cache, kept):
    out = run(LIBRARY + """
    for address in [malloc(20 << 20, 0, None) for _ in range(3)]:
        free(address, 20 << 20, 0, None)
    print(count("live:bytes"))
    """, MC_ALLOCATOR_CACHE=cache)
    assert int(out) == kept


def test_memory_that_is_freed_while_the_process_ends_is_left_to_it():
    run(LIBRARY + """
    import atexit
    kept, freed = malloc(2 << 20, 0, None), malloc(4 << 20, 0, None)
    cuda.fake_cuda_fail(b"*", 1, 4)
    atexit.register(free, freed, 4 << 20, 0, None)
    """)


def test_foreign_addresses_are_left_alone_and_logged_once():
    out = run(LIBRARY + """
    import sys
    os.dup2(1, 2)
    buffer = ctypes.create_string_buffer(b"untouched")
    for _ in range(3):
        free(ctypes.addressof(buffer), 9, 0, None)
    free(None, 0, 0, None)
    print(buffer.value)
    """)
    assert out.count("left alone") == 1 and "untouched" in out
