# SPDX-License-Identifier: Apache-2.0
"""The RPC helper of `mooncake.engine`: bytes and tensors from one process to a callback of another. For control messages and occasional
tensors; what is large or frequent is the engine's business."""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, Any, Callable

from ._rpc_client import Client, clients, split_address
from ._rpc_frames import TENSOR, FrameError, Message, data_header, tensor_header
from ._rpc_server import Server, servers

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

_THREADS, _TIMEOUT_S, _POOL_SIZE = 8, 30, 100  # where 0 is given
_TIMEOUT_MAX_S = 10**7  # the clocks of sockets and locks cannot count much further
_ASYNC_THREADS = 32  # at most, for each interface


def _warn(text: str) -> None:
    from .engine import _log_warning

    _log_warning(text)


def _natural(name: str, value: Any) -> int:
    number = operator.index(value)
    if number < 0:
        raise TypeError(f"{name} must not be negative")
    return number


class ReceivedData:
    """Bytes that arrived. Their memory lives as long as this or a view of it does."""

    def __init__(self) -> None:
        raise TypeError("ReceivedData is made by the receiver only")

    @property
    def source_address(self) -> str:
        return self._source

    @property
    def data_size(self) -> int:
        return len(self._memory)

    def get_bytes(self) -> bytes:
        """A copy."""
        return bytes(self._memory)

    def get_memory_view(self) -> memoryview:
        """The memory itself."""
        return self._memory


class ReceivedTensor:
    """A tensor that arrived, as its elements in C order. Their memory lives as long as this or a view of it does:
    torch.frombuffer(tensor.get_memory_view(), dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)"""

    def __init__(self) -> None:
        raise TypeError("ReceivedTensor is made by the receiver only")

    @property
    def source_address(self) -> str:
        return self._source

    @property
    def shape(self) -> list[int]:
        return list(self._shape)

    @property
    def dtype(self) -> str:
        """As torch names it: "float32"."""
        return self._dtype

    @property
    def total_bytes(self) -> int:
        return len(self._memory)

    def get_data_size(self) -> int:
        return len(self._memory)

    def get_data_as_bytes(self) -> bytes:
        """A copy."""
        return bytes(self._memory)

    def get_memory_view(self) -> memoryview:
        """The memory itself."""
        return self._memory


class _Callbacks:
    """Whom to tell of what arrives."""

    data: Callable[[dict[str, Any]], Any] | None = None
    tensor: Callable[[ReceivedTensor], Any] | None = None

    def deliver(self, message: Message, source: str) -> None:
        try:
            if message.kind == TENSOR and self.tensor is not None:
                self.tensor(_received(ReceivedTensor, message, source))
            elif self.data is not None:
                received = _received(ReceivedData, message, source)
                self.data({"source": received.source_address, "data": received.get_bytes()})
        except BaseException:  # also SystemExit and the like: whoever sent must hear of the end, and this thread goes on serving
            _warn(f"rpc: the callback failed on what {source} sent: {traceback.format_exc().rstrip()}")


def _received(kind: Any, message: Message, source: str) -> Any:
    received = kind.__new__(kind)
    received._source, received._memory, received._shape, received._dtype = source, message.memory, message.shape, message.dtype
    return received


class RpcInterface:
    """Sends bytes and tensors to other processes, and hands those that arrive to callbacks. Everything may be called from any thread.

    Nothing works before one of the initialize calls: sending returns -1, starting False. A line in the log tells why."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks = _Callbacks()
        self._client: Client | None = None
        self._close_client: Callable[[], Any] = lambda: None  # done at the latest when this object or the program ends
        self._listen: tuple[str, int, int] | None = None  # address, threads, timeout
        self._server: Server | None = None
        self._stop: Callable[[], Any] = lambda: None  # what stops the server; done at the latest when this object or the program ends
        self._executor: ThreadPoolExecutor | None = None
        interfaces.add(self)

    @property
    def port(self) -> int:
        """Where the server listens; 0 when it does not."""
        server = self._server
        return 0 if server is None or server.stopped.is_set() else server.port

    def initialize(self, listen_address: str = "", thread_count: int = 0, timeout_seconds: int = 30, pool_size: int = 100) -> bool:
        """Prepares sending and, with a listen_address ("host:port", "[v6]:port"), receiving. 0 stands for the default everywhere.

        thread_count: how many callbacks may run at once.
        timeout_seconds: for a whole send, up to the end of the receiver's callback, plus a second per GiB; and how long a sender may pause.
        pool_size: how many connections one target may get; more senders wait."""
        threads, timeout_s = _natural("thread_count", thread_count), _natural("timeout_seconds", timeout_seconds)
        return _prepare(self, listen_address, threads, timeout_s, _natural("pool_size", pool_size))

    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool:
        """initialize() for sending only."""
        return _prepare(self, "", 0, _natural("timeout_seconds", timeout_seconds), _natural("pool_size", pool_size))

    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool:
        """initialize() with the default pool_size."""
        return _prepare(self, listen_address, _natural("thread_count", thread_count), _natural("timeout_seconds", timeout_seconds), 0)

    def start_server(self) -> bool:
        """Receives until stop_server() is called elsewhere. False if it cannot start."""
        server = _start(self)
        if server is None:
            return False
        try:
            server.stopped.wait()
        except BaseException:  # the user's interrupt
            self.stop_server()
            raise
        return True

    def start_server_async(self) -> bool:
        """Receives from now on, in threads of its own. False if it cannot start."""
        return _start(self) is not None

    def stop_server(self) -> None:
        """Ends receiving and waits for callbacks that run (not for the one that calls this). It may be started again."""
        server = self._server
        if server is not None:
            server.stop()
            self._stop()

    def send_data(self, target_address: str, data: Any) -> int:
        """Sends bytes, or any object with contiguous memory, and waits for the receiver's callback. Returns 0; -1 if that is not known
        to have happened."""
        memory = memoryview(data).cast("B")
        return _send(self._client, target_address, lambda: (data_header(len(memory)), memory))

    def send_data_async(self, target_address: str, data: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """As send_data(), as a future of that loop. The data must stay as it is until then."""
        memoryview(data)
        return _send_in_thread(self, loop, self.send_data, target_address, data)

    def send_tensor(self, target_address: str, tensor: Any) -> int:
        """Sends a tensor and waits for the receiver's callback; memory that is not contiguous or not on the host is copied first. Returns
        0; -1 if it is no tensor or not known to have arrived."""
        return _send(self._client, target_address, lambda: _tensor_parts(tensor))

    def send_tensor_async(self, target_address: str, tensor: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """As send_tensor(), as a future of that loop. The tensor must stay as it is until then."""
        return _send_in_thread(self, loop, self.send_tensor, target_address, tensor)

    def set_data_receive_callback(self, callback: Callable[[dict[str, Any]], Any]) -> None:
        """It gets {"source": the sender's "host:port", "data": bytes}; also for tensors, while no callback is set for them."""
        self._callbacks.data = _callable(callback)

    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], Any]) -> None:
        self._callbacks.tensor = _callable(callback)


CoroRPCInterface = RpcInterface  # an older name


def _callable(callback: Any) -> Any:
    if not callable(callback):
        raise TypeError(f"a callable is expected, not {type(callback).__name__}")
    return callback


def _prepare(interface: RpcInterface, listen_address: str, threads: int, timeout_s: int, pool_size: int) -> bool:
    if not isinstance(listen_address, str):
        raise TypeError(f"listen_address must be a str, not {type(listen_address).__name__}")
    if os.environ.get("MC_RPC_PROTOCOL", "").lower() == "rdma":
        _warn("rpc: MC_RPC_PROTOCOL=rdma asks for RDMA, which the RPC helper does not have; unset it to use tcp")
        return False
    with interface._lock:
        if interface.port:
            _warn("rpc: initialize is refused while the server runs; stop_server() comes first")
            return False
        interface._close_client()
        timeout_s = min(timeout_s or _TIMEOUT_S, _TIMEOUT_MAX_S)
        interface._client = Client(pool_size or _POOL_SIZE, timeout_s)
        interface._close_client = weakref.finalize(interface, interface._client.close)
        interface._listen = (listen_address, threads or _THREADS, timeout_s) if listen_address else None
    return True


def _start(interface: RpcInterface) -> Server | None:
    with interface._lock:
        if interface._listen is None or interface.port:
            _warn("rpc: the server cannot start: " + ("it runs already" if interface.port else "no address to listen on was given"))
            return None
        address, threads, timeout_s = interface._listen
        try:
            server = Server(*split_address(address), threads, timeout_s, interface._callbacks.deliver, _warn)
        except (OSError, ValueError, RuntimeError) as error:
            _warn(f"rpc: the server cannot start on {address!r}: {error}")
            return None
        interface._server, interface._stop = server, weakref.finalize(interface, server.stop)
        return server


def _send(client: Client | None, target: str, parts: Callable[[], tuple[bytes, memoryview]]) -> int:
    if not isinstance(target, str):
        raise TypeError(f"target_address must be a str, not {type(target).__name__}")
    try:
        if client is None:
            raise FrameError("initialize comes first")
        client.send(target, *parts())
    except (OSError, ValueError, RuntimeError) as error:
        _warn(f"rpc: sending to {target!r} failed: {error}")
        return -1
    return 0


def _tensor_parts(tensor: Any) -> tuple[bytes, memoryview]:
    from ._tensors import is_tensor

    if not is_tensor(tensor):
        raise FrameError(f"a tensor is expected, not {type(tensor).__name__}")
    for step in ("detach", "cpu", "resolve_conj", "resolve_neg", "contiguous"):  # torch's; nothing happens where nothing is to be done
        tensor = getattr(tensor, step, lambda: tensor)()
    shape, element_bytes = [int(extent) for extent in tensor.shape], int(tensor.dtype.itemsize)
    header = tensor_header(shape, str(tensor.dtype).rsplit(".", 1)[-1], element_bytes)
    length = math.prod(shape) * element_bytes
    if length == 0:
        return header, memoryview(b"")
    memory = (ctypes.c_ubyte * length).from_address(tensor.data_ptr())
    memory.owner = tensor  # kept by the view
    return header, memoryview(memory).cast("B")


def _send_in_thread(interface: RpcInterface, loop: asyncio.AbstractEventLoop, call: Callable[..., int], *arguments: Any) -> asyncio.Future[int]:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise TypeError(f"an event loop is expected, not {type(loop).__name__}")
    with interface._lock:
        if interface._executor is None:
            interface._executor = ThreadPoolExecutor(_ASYNC_THREADS, "mooncake-rpc-send")
            weakref.finalize(interface, interface._executor.shutdown, wait=False)
    return loop.run_in_executor(interface._executor, call, *arguments)


def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """An RpcInterface that can send. The arguments are for the caller's own use."""
    _natural("local_rank", local_rank), _natural("world_size", world_size)
    return _made(lambda interface: interface.initialize_client())


def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """An RpcInterface that will listen on 0.0.0.0:8080 once it is started. The arguments are for the caller's own use."""
    _natural("local_rank", local_rank), _natural("world_size", world_size)
    return _made(lambda interface: interface.initialize_server("0.0.0.0:8080"))


def _made(initialize: Callable[[RpcInterface], bool]) -> RpcInterface:
    interface = RpcInterface()
    if not initialize(interface):
        raise RuntimeError("the RPC helper cannot be used as the environment asks; the log says why")
    return interface


interfaces: weakref.WeakSet[RpcInterface] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child nothing listens and no connection is shared with the parent. It may initialize, start and send by itself."""
    for endpoint in (*servers, *clients):
        endpoint.abandon()
    for interface in interfaces:
        interface._lock, interface._executor = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
