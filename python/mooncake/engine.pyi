# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between registered memory of any two processes."""

import asyncio
import enum
from types import TracebackType
from typing import Any, Callable, Coroutine, Protocol, Sequence, SupportsIndex, TypeAlias

from typing_extensions import Buffer, Self

SUPPORT_CUDA: bool
SUPPORT_EFA: bool
SUPPORT_HIP: bool
SUPPORT_INTRA_NVLINK: bool
SUPPORT_MNNVL: bool
SUPPORT_MUSA: bool

def _list_features() -> list[tuple[str, bool, str]]: ...

class _DLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...

class TransferOpcode(enum.IntEnum):
    """Which way the bytes go: Read fetches from the peer, Write sends."""

    Read = 0
    Write = 1
    READ = 0
    WRITE = 1

Read = TransferOpcode.Read
Write = TransferOpcode.Write
READ = TransferOpcode.Read
WRITE = TransferOpcode.Write

# An address, a length or an id: an int from 0 to 2**64 - 1, or anything with __index__.
_Address: TypeAlias = SupportsIndex
# An address, or an object whose memory is contiguous and on the host.
_Memory: TypeAlias = SupportsIndex | Buffer | _DLPack
# What a transfer waits for on the host before it touches memory: a stream's handle, or an object with cuda_stream, __cuda_stream__ or cuda_event.
_Work: TypeAlias = Any | None
_Opcode: TypeAlias = TransferOpcode | int
_OpcodeClass: TypeAlias = type[TransferOpcode]

class TransferNotify:
    """A message for the peer, delivered after the data of its transfer is in place."""

    name: str
    msg: str
    def __init__(self, name: str = "", msg: str = "") -> None: ...

class InnerTransferEngine:
    """The engine itself, to be shared with other modules of this package. Opaque."""

class PreparedTransfer:
    """A transfer whose lists were read, checked and resolved once, made by TransferEngine.prepare(); may be run any number of times,
    from any thread."""

    def write(self, *, after: _Work = None) -> int:
        """Sends the buffers to the peer and waits. Returns 0, or -1 on failure."""
    def read(self, *, after: _Work = None) -> int:
        """Fetches the buffers from the peer and waits. Returns 0, or -1 on failure."""
    def submit_write(self, *, after: _Work = None) -> int:
        """Starts sending. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure."""
    def submit_read(self, *, after: _Work = None) -> int:
        """Starts fetching. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure."""

class TransferEngine:
    """One end of transfers: registers memory that peers may read and write, and reads and writes theirs. Everything may be called
    from any thread. Addresses are ints; buffers may also be objects with the buffer protocol or DLPack.

    Before initialize(), after close() and in a forked child every call fails: -1, 0 where an id or an address is asked for, or
    RuntimeError. last_error() tells why."""

    TransferOpcode: _OpcodeClass

    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None) -> None: ...

    # ---- life

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str | None) -> int:
        """Starts the engine. Returns 0, or -1 (see last_error()), after which it may be called again.

        local_hostname: the name peers reach us by, "10.0.0.1" or "10.0.0.1:12345".
        metadata_server: "P2PHANDSHAKE", or the address of a directory: "http://...", "etcd://...", "redis://...".
        protocol: the transport preferred between hosts; what this machine does not have falls back to tcp.
        device_name: comma-separated network devices to use; "" or "auto-discovery" for all.
        """
    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str | None, metadata_type: str) -> int:
        """As initialize(), with the scheme of the directory ("http", "etcd", "redis") in metadata_type."""
    def close(self) -> None:
        """Ends everything that runs, takes all memory back from the peers and joins the engine's threads. When it returns, nobody touches
        registered memory any more, whoever else is closing it. Later calls fail. RuntimeError if a process of this host hangs in the midst
        of an access to our memory (it was stopped, say) and may go on with it: everything else is done, and calling it again waits for that."""

    # ---- identity

    def get_rpc_port(self) -> int:
        """The port of this engine: f"{host}:{port}" is the name peers pass as target_hostname. RuntimeError before initialize()."""
    def get_engine(self) -> InnerTransferEngine:
        """The engine itself, for other modules of this package. RuntimeError before initialize()."""
    def get_engine_ptr(self) -> int:
        """The address of the native engine. RuntimeError before initialize()."""
    def get_local_topology(self, device_name: str | None = None) -> str:
        """Which network devices are near which memory, as JSON: {"cpu:0": [[preferred], [others]], ...}. Works before initialize()."""
    def get_metrics(self) -> str:
        """Counters and latencies in the Prometheus text format. RuntimeError before initialize()."""
    def last_error(self) -> str:
        """What went wrong in the last failed call of this thread, of any engine: peer, path, stage and system error. "" if nothing did."""

    # ---- memory

    def register_memory(self, buffer_addr: _Memory, capacity: _Address | None = None, location: str = "*") -> int:
        """Lets peers read and write memory. Returns 0, -7 when it overlaps other registered memory, -1 or another negative number.

        buffer_addr: an address, or an object with the buffer protocol or DLPack, which is kept alive until unregistered.
        capacity: the length in bytes; that of the object if left out.
        location: where the memory is, "cpu:0"; "*" finds out.
        """
    def unregister_memory(self, buffer_addr: _Memory) -> int:
        """Takes the memory back: once it returned 0, no peer touches it any more. -3 if it is not registered."""
    def batch_register_memory(self, buffer_addresses: Sequence[_Memory], capacities: Sequence[_Address] | None = None, location: str = "*") -> int:
        """Registers several ranges, all or none. Returns 0 or a negative number."""
    def batch_unregister_memory(self, buffer_addresses: Sequence[_Memory]) -> int:
        """Takes several ranges back; goes on after a failure and returns the first, else 0."""
    def allocate_managed_buffer(self, length: _Address) -> int:
        """Registered memory of at least `length` bytes, fast to reach for peers on this host. Returns its address, or 0."""
    def free_managed_buffer(self, buffer_addr: _Address, length: _Address) -> int:
        """Gives back what allocate_managed_buffer(length) returned. Returns 0, -3 for an unknown address, -1 for another length."""
    def write_bytes_to_buffer(self, dest_address: _Address, src: bytes | str | Buffer, length: _Address | None = None) -> int:
        """Copies the first `length` bytes of src (all if left out) to an address of this process. Returns 0, or -1 where no memory is."""
    def read_bytes_from_buffer(self, source_address: _Address, length: _Address) -> bytes:
        """The `length` bytes at an address of this process. ValueError where no memory is."""

    # ---- transfers that block

    def transfer_sync_write(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Sends `length` bytes at `buffer` to the peer's address and waits until they are there. Returns 0, or -1 on failure."""
    def transfer_sync_read(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Fetches `length` bytes at the peer's address into `buffer` and waits. Returns 0, or -1 on failure."""
    def transfer_sync(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None, opcode: _Opcode,
        notify: TransferNotify | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """transfer_sync_write() or transfer_sync_read() by opcode; `notify` reaches the peer's get_notifies() after the data."""
    def batch_transfer_sync_write(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address],
        lengths: Sequence[_Address] | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Sends many blocks to one peer and waits for all. The lists must be equally long; int64 and uint64 arrays are read without a
        Python object per entry. Returns 0, or -1 on failure: then no byte moves any more."""
    def batch_transfer_sync_read(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address],
        lengths: Sequence[_Address] | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Fetches many blocks from one peer and waits for all. As batch_transfer_sync_write(), the local addresses first."""
    def batch_transfer_sync(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None,
        opcode: _Opcode, notify: TransferNotify | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """batch_transfer_sync_write() or batch_transfer_sync_read() by opcode; `notify` reaches the peer's get_notifies() after the data."""
    def prepare(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None = None
    ) -> PreparedTransfer:
        """Reads, checks and resolves the lists once, for transfers that are repeated. ValueError for lists of different lengths,
        RuntimeError when the engine refuses them."""

    # ---- transfers that are only started

    def batch_transfer_async_write(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address],
        lengths: Sequence[_Address] | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Starts sending many blocks. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure."""
    def batch_transfer_async_read(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address],
        lengths: Sequence[_Address] | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Starts fetching many blocks. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure."""
    def batch_transfer_async(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None,
        opcode: _Opcode, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """batch_transfer_async_write() or batch_transfer_async_read() by opcode."""
    def transfer_submit_write(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None = None, transport_hint: str = "",
        *, after: _Work = None,
    ) -> int:
        """Starts sending one block. Returns a batch id, or 0 on failure."""
    def get_batch_transfer_status(self, batch_ids: Sequence[_Address]) -> int:
        """Waits until all the batches are over and frees them. Returns 0 if all succeeded, else -1."""
    def transfer_check_status(self, batch_id: _Address) -> int:
        """Without waiting: 1 done, 0 running, -1 failed or unknown, -2 timed out. 1 and -1 free the batch; -2 does not."""
    def cancel(self, batch_id: _Address) -> int:
        """Stops a batch: once it returned, no byte of it moves any more. The id still wants get_batch_transfer_status() or
        transfer_check_status(). Returns 0, or -1 for an unknown id."""
    def transfer_async(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None,
        opcode: _Opcode, after: _Work = None,
    ) -> Coroutine[Any, Any, int]:
        """To be awaited: as batch_transfer_sync(), without blocking the event loop and without a thread per call. Cancelling the task
        stops the transfer before CancelledError arrives."""

    # ---- transfers in the order of a CUDA stream

    def transfer_write_on_cuda(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None, stream_ptr: Any = 0,
        transport_hint: str = "",
    ) -> None:
        """Puts a write on a CUDA stream: it begins when all is over that is on the stream now, and what is put there afterwards waits for
        its end. Returns at once. RuntimeError if the peer cannot be reached, if a graph is being captured on the stream, or without CUDA.
        A transfer that fails later ends the process with code 1, or, with MC_CUDA_ON_STREAM_FAILURE=continue, is raised by the next of
        these calls."""
    def transfer_read_on_cuda(
        self, target_hostname: str, buffer: _Memory, peer_buffer_address: _Address, length: _Address | None, stream_ptr: Any = 0,
        transport_hint: str = "",
    ) -> None:
        """As transfer_write_on_cuda(), from the peer to `buffer`."""
    def batch_transfer_write_on_cuda(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None,
        stream_ptr: Any = 0, transport_hint: str = "",
    ) -> None:
        """As transfer_write_on_cuda(), with many blocks. RuntimeError for lists of different lengths."""
    def batch_transfer_read_on_cuda(
        self, target_hostname: str, buffers: Sequence[_Memory], peer_buffer_addresses: Sequence[_Address], lengths: Sequence[_Address] | None,
        stream_ptr: Any = 0, transport_hint: str = "",
    ) -> None:
        """As transfer_read_on_cuda(), with many blocks. RuntimeError for lists of different lengths."""

    # ---- peers

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the first memory a peer (or this engine) registered; 0 if there is none or it cannot be reached."""
    def send_probe(self, peer_server_name: str) -> int:
        """0 if the peer is alive; -200 if nobody knows it, another negative number if it cannot be reached, -1 before initialize()."""
    def warmup_efa_segment(self, segment_name: str) -> int:
        """Connects to a peer ahead of the first transfer, where that helps. Returns 0, also when there is nothing to do; a negative number
        when the fabric cannot reach it."""
    def get_notifies(self) -> list[TransferNotify]:
        """All messages that arrived since the last call. RuntimeError before initialize()."""

    # ---- for mooncake._asyncio

    def _watch(self, port: _CompletionPort, batch_id: int, token: int) -> bool: ...
    def _is_connected(self, target_hostname: str) -> bool: ...
    def _submit(
        self, target_hostname: str, buffers: Sequence[Any], peer_buffer_addresses: Sequence[int], lengths: Sequence[int] | None, opcode: TransferOpcode | int,
        after: _Work = None,
    ) -> int: ...
    def _begin_cancel(self, batch_id: int) -> None: ...
    def _discard(self, batch_id: int) -> None: ...

class _CompletionPort:
    def fileno(self) -> int: ...
    def put(self, token: int) -> None: ...
    def take(self) -> list[int]: ...

# ---- bytes and tensors to a callback in another process

class ReceivedData:
    """Bytes that arrived. Their memory lives as long as this or a view of it does."""

    source_address: str
    data_size: int
    def get_bytes(self) -> bytes:
        """A copy."""
    def get_memory_view(self) -> memoryview:
        """The memory itself."""

class ReceivedTensor:
    """A tensor that arrived, as its elements in C order. Their memory lives as long as this or a view of it does:
    torch.frombuffer(tensor.get_memory_view(), dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)"""

    source_address: str
    shape: list[int]
    dtype: str
    total_bytes: int
    def get_data_size(self) -> int: ...
    def get_data_as_bytes(self) -> bytes:
        """A copy."""
    def get_memory_view(self) -> memoryview:
        """The memory itself."""

class RpcInterface:
    """Sends bytes and tensors to other processes, and hands those that arrive to callbacks. Everything may be called from any thread.

    Nothing works before one of the initialize calls: sending returns -1, starting False. A line in the log tells why."""

    port: int
    def __init__(self) -> None: ...
    def initialize(self, listen_address: str = "", thread_count: int = 0, timeout_seconds: int = 30, pool_size: int = 100) -> bool:
        """Prepares sending and, with a listen_address ("host:port", "[v6]:port"), receiving. 0 stands for the default everywhere.

        thread_count: how many callbacks may run at once.
        timeout_seconds: for a whole send, up to the end of the receiver's callback, plus a second per GiB; and how long a sender may pause.
        pool_size: how many connections one target may get; more senders wait."""
    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool:
        """initialize() for sending only."""
    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool:
        """initialize() with the default pool_size."""
    def start_server(self) -> bool:
        """Receives until stop_server() is called elsewhere. False if it cannot start."""
    def start_server_async(self) -> bool:
        """Receives from now on, in threads of its own. False if it cannot start."""
    def stop_server(self) -> None:
        """Ends receiving and waits for callbacks that run (not for the one that calls this). It may be started again."""
    def send_data(self, target_address: str, data: Buffer) -> int:
        """Sends bytes, or any object with contiguous memory, and waits for the receiver's callback. Returns 0; -1 if that is not known
        to have happened."""
    def send_data_async(self, target_address: str, data: Buffer, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """As send_data(), as a future of that loop. The data must stay as it is until then."""
    def send_tensor(self, target_address: str, tensor: Any) -> int:
        """Sends a tensor and waits for the receiver's callback; memory that is not contiguous or not on the host is copied first. Returns
        0; -1 if it is no tensor or not known to have arrived."""
    def send_tensor_async(self, target_address: str, tensor: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """As send_tensor(), as a future of that loop. The tensor must stay as it is until then."""
    def set_data_receive_callback(self, callback: Callable[[dict[str, Any]], Any]) -> None:
        """It gets {"source": the sender's "host:port", "data": bytes}; also for tensors, while no callback is set for them."""
    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], Any]) -> None: ...

CoroRPCInterface = RpcInterface

def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """An RpcInterface that can send. The arguments are for the caller's own use."""

def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """An RpcInterface that will listen on 0.0.0.0:8080 once it is started. The arguments are for the caller's own use."""

# ---- memory that processes of one host share

class SharedSegment:
    """Memory that several processes of one host share. The mapping lasts as long as this object does. Addresses differ between processes."""

    @staticmethod
    def create(
        name: str, size: int, world_size: int, rank_id: int, owner_rank: int = 0, device_id: int = 0, mmap: bool = True,
        host_register: bool = False,
    ) -> tuple[SharedSegment, bytes]:
        """The first step, the same in all ranks but for rank_id; the owner allocates. Returns the segment and a blob that every rank needs
        for complete(). RuntimeError if it cannot be."""
    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        """Whether create() with these can work here."""
    def complete(self, blobs: Sequence[bytes]) -> None:
        """The second step: takes the blobs of all ranks, in the order of ranks, while the owner's segment exists. RuntimeError says which
        blob does not fit and why; then it may be tried again."""
    def ready(self) -> bool:
        """Whether complete() succeeded."""
    def base_addr(self) -> int:
        """Where the memory begins in this process; 0 while it is not mapped."""
    def device_addr(self) -> int:
        """Where a device sees it: 0, no device does."""
    def size(self) -> int:
        """The size asked for."""
