# SPDX-License-Identifier: Apache-2.0
"""A pool of memory lent by many processes, addressed by key."""

import enum
from types import TracebackType
from typing import Any, Mapping, Sequence

from typing_extensions import Buffer, Self

from ._tensor_parallel import ParallelAxis as ParallelAxis
from ._tensor_parallel import ReadTarget as ReadTarget
from ._tensor_parallel import TensorParallelism as TensorParallelism
from .buffer_pool import BufferLease as BufferLease
from .buffer_pool import BufferPool as BufferPool
from .engine import InnerTransferEngine

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease

class ObjectDataType(enum.IntEnum):
    """What a value is; for statistics only."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9

UNKNOWN = ObjectDataType.UNKNOWN
KVCACHE = ObjectDataType.KVCACHE
TENSOR = ObjectDataType.TENSOR
WEIGHT = ObjectDataType.WEIGHT
SAMPLE = ObjectDataType.SAMPLE
ACTIVATION = ObjectDataType.ACTIVATION
GRADIENT = ObjectDataType.GRADIENT
OPTIMIZER_STATE = ObjectDataType.OPTIMIZER_STATE
METADATA = ObjectDataType.METADATA
GENERAL = ObjectDataType.GENERAL

class SoftPinAction(enum.IntEnum):
    """What a write does to the soft pin of its value."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2

class ReplicaStatus(enum.IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5

UNDEFINED = ReplicaStatus.UNDEFINED
INITIALIZED = ReplicaStatus.INITIALIZED
COMPLETE = ReplicaStatus.COMPLETE
REMOVED = ReplicaStatus.REMOVED

class TaskType(enum.IntEnum):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1

REPLICA_COPY = TaskType.REPLICA_COPY
REPLICA_MOVE = TaskType.REPLICA_MOVE

class TaskStatus(enum.IntEnum):
    PENDING = 0
    PROCESSING = 1
    SUCCESS = 3
    FAILED = 2

PENDING = TaskStatus.PENDING
PROCESSING = TaskStatus.PROCESSING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

class ReplicateConfig:
    """How values are to be stored."""

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_hard_pin: bool
    preferred_segments: list[str]
    preferred_segment: str
    preferred_nof_segments: list[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None
    with_soft_pin: bool
    def __init__(self) -> None: ...

class Descriptor:
    """A range of a segment."""

    size: int
    buffer_address: int
    transport_endpoint: str
    def __init__(self) -> None: ...

class MemoryDescriptor:
    """A replica in memory."""

    @property
    def buffer_descriptor(self) -> Descriptor: ...

class DiskDescriptor:
    """A replica in a file."""

    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

class ReplicaDescriptor:
    """One copy of a value."""

    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor:
        """RuntimeError for a replica in memory."""

class QueryTaskResponse:
    """How a copy or a move stands."""

    def __init__(self) -> None: ...
    @property
    def id(self) -> tuple[int, int]: ...
    @property
    def type(self) -> TaskType: ...
    @property
    def status(self) -> TaskStatus: ...
    @property
    def created_at_ms_epoch(self) -> int: ...
    @property
    def last_updated_at_ms_epoch(self) -> int: ...
    @property
    def assigned_client(self) -> tuple[int, int]: ...
    @property
    def message(self) -> str: ...

class BufferHandle(Buffer):
    """A value that was read into the store's own memory, with the buffer protocol; writable. The memory is given back when the object
    goes."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...

class BufferLeaseView(Buffer):
    """Memory of a BufferLease, with the buffer protocol."""

    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def exports(self) -> int:
        """How many views of it exist."""
    def release(self) -> None: ...

RegisteredBufferLeaseView = BufferLeaseView

class MooncakeHostMemAllocator:
    """Memory that other processes of this host can map; huge pages with MC_STORE_USE_HUGEPAGE."""

    def __init__(self) -> None: ...
    def alloc(self, size: int) -> int:
        """The address of `size` bytes. RuntimeError if there are none."""
    def free(self, ptr: int) -> int:
        """Returns 0, or -1 for an address that alloc() did not give."""

class MooncakeDistributedStore:
    """One member of the pool: reads and writes values, and lends memory if told to. No work is done before setup(). Everything may be
    called from any thread. Answers are 0 or more for success, negative for failure; lists have the length and the order of the
    question."""

    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None) -> None: ...
    def _setup_thin(self, buffer_bytes: int, server_address: str) -> int:
        """What setup_dummy() ends in."""
    def _setup(self, local_hostname: str, metadata_server: str, segment_bytes: int, buffer_bytes: int, protocol: str,
               devices: Sequence[str], master: str, tenant: str, http_server: bool, http_port: int,
               engine: InnerTransferEngine | None) -> int:
        """What setup() ends in."""
    def close(self) -> int:
        """Leaves the pool: ends calls in flight, takes our segments out, joins all threads. Returns 0, also where nothing was set up.
        Afterwards setup() may be called again."""
    def health_check(self) -> int:
        """0: well; 1: not set up, or closed; 2: the master does not answer."""
    def get_hostname(self) -> str:
        """host:port, the name of our segments: what preferred_segments takes. "" before setup()."""
    def get_metrics(self) -> str:
        """Counters and latencies in the Prometheus text format. "" before setup()."""
    def _get_pyclient_capsule(self) -> Any:
        """Shares the native client with other modules; None before setup()."""
    def _buffer_bytes(self) -> int:
        """The size of the staging memory."""
    def _stage(self, size: int) -> BufferLeaseView | None:
        """Staging memory, or None."""
    def _allocate(self, size: int, alignment: int) -> BufferLeaseView | None:
        """Registered memory, or None."""
    def put(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """Stores a value: any object with contiguous memory. Returns 0, also where the key has a value already, which stays if
        it can be read. -200: no space; -600: empty key or value, or a configuration that makes no sense."""
    def upsert(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """As put(), replacing a value that is there."""
    def put_batch(self, keys: Sequence[str], values: Sequence[Buffer], config: ReplicateConfig | None = None) -> int:
        """put() for each key. Returns 0, or the code of the first that failed."""
    def upsert_batch(self, keys: Sequence[str], values: Sequence[Buffer], config: ReplicateConfig | None = None) -> int:
        """upsert() for each key. Returns 0, or the code of the first that failed."""
    def _put_parts(self, key: str, parts: Sequence[Buffer], config: ReplicateConfig | None, replace: bool) -> int: ...
    def get(self, key: str) -> bytes:
        """The value as bytes; b"" if there is none or it could not be read."""
    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """get() for each key, in one go. [b""] before setup()."""
    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value in a BufferHandle, without a copy of its own; None if there is none or the staging memory is full."""
    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """get_buffer() for each key."""
    def is_exist(self, key: str) -> int:
        """1: there, and readable for the lease time of the master; 0: not; negative: it is not known."""
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """is_exist() for each key."""
    def get_size(self, key: str) -> int:
        """The length of the value in bytes, or a negative code: -704 if there is none."""
    def _batch_get_size(self, keys: Sequence[str]) -> list[int]: ...
    def remove(self, key: str, force: bool = False) -> int:
        """Removes a value. 0; -704: there is none; -706: somebody may be reading it (force skips this); -703: it is still being written;
        -708: it is being copied or moved."""
    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """remove() for each key."""
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes every value in whose key the pattern is found. Returns how many, or a negative code: -600 for a bad
        pattern, which is one that is empty, looks ahead, behind or back, or would take very long. What is written meanwhile stays."""
    def remove_all(self, force: bool = False) -> int:
        """Removes everything, but for what is written meanwhile. Returns how many, or a negative code."""
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Makes memory known to the network, which then reads and writes it by itself. Returns 0 or a code."""
    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Ends what register_buffer() began."""
    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """As put(), with a value in memory named by its address. Returns 0 and stores nothing for size 0."""
    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """As put_from(), replacing a value that is there."""
    def put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int, metadata_size: int,
                               config: ReplicateConfig | None = None) -> int:
        """As put_from(), of the metadata followed by the data. -1 for misuse."""
    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: ReplicateConfig | None = None) -> list[int]:
        """put_from() for each key, in one go. Returns a list of codes."""
    def batch_upsert_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                          config: ReplicateConfig | None = None) -> list[int]:
        """upsert_from() for each key. Returns a list of codes."""
    def batch_put_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], config: ReplicateConfig | None = None) -> list[int]:
        """As batch_put_from(); the value of each key is its buffers one after the other. [] before setup()."""
    def _batch_upsert_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                         all_sizes: Sequence[Sequence[int]], config: ReplicateConfig | None = None) -> list[int]: ...
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads a value into memory. Returns its length, or a code: -704: there is none; -600: it is longer than `size`."""
    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """get_into() for each key, in one go. Returns a list of lengths and codes."""
    def batch_get_into_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], prefer_alloc_in_same_node: bool = False) -> list[int]:
        """As batch_get_into(); each value fills its buffers one after the other."""
    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of memory that the node can be given by register_buffer(), until close(). 0: there is none, or this is no thin client."""
    def are_buffers_mapped(self, buffer_ptrs: Sequence[int]) -> list[int]:
        """Per address 1: the node that is there now has the memory registered there. Only thin clients."""
    def get_offload_rpc_read_count(self) -> int:
        """How many values were read from disks of peers."""
    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0: nothing is kept on disk. -1 before setup()."""
    def get_into_ranges(self, buffer_ptrs: Sequence[int], all_keys: Sequence[Sequence[str]],
                        all_dst_offsets: Sequence[Sequence[Sequence[int]]], all_src_offsets: Sequence[Sequence[Sequence[int]]],
                        all_sizes: Sequence[Sequence[Sequence[int]]]) -> list[list[list[int]]]:
        """Reads parts of values into registered memory: per buffer a list of keys, per key a list of parts. Returns the length or a
        negative code of every part, in the shape of all_dst_offsets."""
    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Finds values that will be read in parts, and keeps them for the lease time. Returns a list of codes; [] before setup(), as do
        the other calls of sessions."""
    def batch_get_into_multi_buffer_ranges(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                           all_sizes: Sequence[Sequence[int]], all_src_offsets: Sequence[Sequence[int]]) -> list[int]:
        """Reads parts of values whose session is open. Returns per key the bytes moved or a code: -600: no session; -707: it expired."""
    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Ends the sessions, where they are open. Returns 0, or -1 before setup()."""
    def batch_put_session_start(self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None) -> list[int]:
        """Reserves space for values that will be written in parts. Returns a list of codes: -705: there is a value already; -600: a
        session is open."""
    def batch_put_from_multi_buffer_ranges(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                           all_sizes: Sequence[Sequence[int]], all_dst_offsets: Sequence[Sequence[int]]) -> list[int]:
        """Writes parts of values whose session is open. Returns per key the bytes moved or a code: -600: no session, or a part overlaps
        another one that is being written, by this call or another."""
    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Waits for the parts on their way and makes the values readable. Returns a list of codes: -700: some bytes were never written, and
        nothing is stored, since what lay there before would be read as part of the value; write gaps, too."""
    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Waits for the parts on their way and gives the space back. Returns a list of codes."""
    def mount_segment(self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lends a part of a file to the pool, and makes all its bytes exist. Returns {"ret": 0 or -1, "segment_ids": [...]}."""
    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes segments back; what is in them stays readable for the grace period, or until the master
        is replaced. Returns 0 or -1."""
    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lends new memory to the pool. Returns {"ret": 0 or -1, "segment_ids": [...], "allocated_size": bytes}."""
    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """As unmount_segment(), for what allocate_and_mount_segment() gave."""
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Where the copies of a value are: a list of ReplicaDescriptor."""
    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """A dict from key to list of ReplicaDescriptor; keys without a value are not in it."""
    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Removes the replicas (with a segment's name: those there) of values that this store wrote and nobody reads. Returns the keys for
        which that was done."""
    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]:
        """Has a value copied to these segments. Returns (task id, 0) or ((0, 0), code)."""
    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """Has a replica moved from one segment to another. Returns (task id, 0) or ((0, 0), code)."""
    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        """How a task stands: (QueryTaskResponse, 0) or (None, code)."""
    def setup(self, local_hostname: str | Mapping[str, Any] | None = None, metadata_server: str | None = None,
              global_segment_size: int | None = None, local_buffer_size: int | None = None, protocol: str | None = None,
              rdma_devices: str | None = None, master_server_addr: str | None = None, engine: Any = None,
              enable_ssd_offload: bool = False, ssd_offload_path: str = "", tenant_id: str = "default",
              enable_client_http_server: bool = False, client_http_port: int = 9300, *, config: Mapping[str, Any] | None = None) -> int:
        """Joins the pool. Returns 0 or a negative code, after which it may be called again.

        Takes the first seven arguments or more, or one dict with the same names, of which only local_hostname and metadata_server are
        needed; sizes may be texts there ("16MB").

        local_hostname: the name others reach us by, "10.0.0.1" (a free port is found) or "10.0.0.1:12345".
        metadata_server: "P2PHANDSHAKE", or the address of a directory: "http://...", "etcd://...", "redis://...".
        global_segment_size: bytes to lend to the pool; 0: none.
        local_buffer_size: bytes of staging memory for get_buffer() and BufferPool; with 0, calls that take or give objects fail.
        protocol: the transport preferred between hosts; what this machine does not have falls back to tcp.
        rdma_devices: comma-separated network devices to use; "" or "auto-discovery" for all.
        master_server_addr: host:port of the master.
        engine: what TransferEngine.get_engine() gives, to be shared; None: the store makes its own.
        enable_ssd_offload: keep values that memory has no room for in a directory on a local disk, too (the master must allow it: --enable_offload).
        ssd_offload_path: that directory, absolute and existing; "": what MOONCAKE_OFFLOAD_FILE_STORAGE_PATH says.
        tenant_id: whose keys these are.
        enable_client_http_server, client_http_port: serve /health and /metrics.
        """
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Attaches to a mooncake_client on this host. Not built yet: -1."""
    def init_all(self, protocol: str, device_name: str, mount_segment_size: int) -> int:
        """Older form of setup(), for a master and a directory with fixed addresses on this host."""
    def put_parts(self, key: str, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """put() of several rows of bytes as one value. Returns 0 and stores nothing if they are all empty."""
    def upsert_parts(self, key: str, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """As put_parts(), replacing a value that is there."""
    def put_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor with its type and shape. Returns 0 or a code: -600 for a type that cannot be stored or more than 8 dimensions."""
    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """put_tensor() for each key, in one go."""
    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """As put_tensor(), with a configuration; preferred_segments then has one entry per replica."""
    def batch_pub_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
        """pub_tensor() for each key, in one go."""
    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """As put_tensor(), replacing a value that is there."""
    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """upsert_tensor() for each key, in one go."""
    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """As pub_tensor(), replacing a value that is there."""
    def batch_upsert_pub_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
        """upsert_pub_tensor() for each key, in one go."""
    def get_tensor(self, key: str) -> Any:
        """The tensor, with memory of its own; None if there is none."""
    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """get_tensor() for each key, in one go."""
    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """The tensor, read into the caller's memory and made of it; None if there is none or it is too long."""
    def batch_get_tensor_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """get_tensor_into() for each key. A list of -600 if the lists are not equally long."""
    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Fills a tensor of a GPU with the stored one, which has its type and shape. Returns the length of what is stored, or a code: -600: it is another
        tensor, or this one is not contiguous; -1012: this one is not a GPU's."""
    def batch_get_tensor_into_cuda(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """get_tensor_into_cuda() for each key. Returns a list of lengths and codes."""
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores `size` bytes that are a header and the elements of a tensor, as get_tensor_into() leaves them. -600 if they are not."""
    def batch_put_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """put_tensor_from() for each key, in one go."""
    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As put_tensor_from(), replacing a value that is there."""
    def batch_upsert_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """upsert_tensor_from() for each key, in one go."""
    def put_tensor_with_tp(self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """Cuts a tensor into tp_size equal parts along split_dim and stores them all. -600 if that cannot be."""
    def batch_put_tensor_with_tp(self, base_keys: Sequence[str], tensors_list: Sequence[Any], tp_rank: int = 0, tp_size: int = 1,
                                 split_dim: int = 0) -> list[int]:
        """put_tensor_with_tp() for each key, in one go."""
    def pub_tensor_with_tp(self, key: str, tensor: Any, config: ReplicateConfig | None = None, tp_rank: int = 0, tp_size: int = 1,
                           split_dim: int = 0) -> int:
        """As put_tensor_with_tp(), with a configuration."""
    def batch_pub_tensor_with_tp(self, base_keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None,
                                 tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> list[int]:
        """pub_tensor_with_tp() for each key, in one go."""
    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """The part of this rank, as put_tensor_with_tp() stored it; None if there is none."""
    def batch_get_tensor_with_tp(self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        """get_tensor_with_tp() for each key, in one go."""
    def get_tensor_with_tp_into(self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """As get_tensor_into(), of the part of this rank."""
    def batch_get_tensor_with_tp_into(self, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                      tp_size: int = 1) -> list[Any]:
        """get_tensor_with_tp_into() for each key."""
    def put_tensor_with_tp_from(self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """As put_tensor_with_tp(), of a whole tensor in memory as put_tensor_from() takes it."""
    def batch_put_tensor_with_tp_from(self, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                      tp_size: int = 1, split_dim: int = 0) -> list[int]:
        """put_tensor_with_tp_from() for each key, in one go."""
    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Writes a stored tensor to a file in the safetensors format. Returns 0 or a code: -1100: there is no such tensor."""
    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str | None = None) -> Any:
        """Reads a tensor (the one called `key`, else the first) from a file in the safetensors format and stores it under `key`, or the
        file's name. Returns it, or None if that failed."""
    def put_tensor_with_parallelism(self, key: str, tensor: Any, parallelism: TensorParallelism | None = None,
                                    config: ReplicateConfig | None = None, writer_partition: Any = None) -> int:
        """Stores the part of a tensor that `parallelism` or `writer_partition` (an object with rank, size and split_dim) names; the whole
        without either. Returns 0 or a code."""
    def batch_put_tensor_with_parallelism(self, keys: Sequence[str], tensors_list: Sequence[Any],
                                          parallelisms: Sequence[TensorParallelism] | None = None, config: ReplicateConfig | None = None,
                                          writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
    def put_tensor_with_parallelism_from(self, key: str, buffer_ptr: int, size: int, parallelism: TensorParallelism | None = None,
                                         config: ReplicateConfig | None = None, writer_partition: Any = None) -> int:
        """The same, of a tensor in memory as put_tensor_from() takes it."""
    def batch_put_tensor_with_parallelism_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                               parallelisms: Sequence[TensorParallelism] | None = None,
                                               config: ReplicateConfig | None = None,
                                               writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
    def upsert_tensor_with_parallelism(self, key: str, tensor: Any, parallelism: TensorParallelism | None = None,
                                       config: ReplicateConfig | None = None, writer_partition: Any = None) -> int:
        """Stores the part of a tensor that `parallelism` or `writer_partition` (an object with rank, size and split_dim) names; the whole
        without either. Returns 0 or a code."""
    def batch_upsert_tensor_with_parallelism(self, keys: Sequence[str], tensors_list: Sequence[Any],
                                             parallelisms: Sequence[TensorParallelism] | None = None,
                                             config: ReplicateConfig | None = None,
                                             writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
    def upsert_tensor_with_parallelism_from(self, key: str, buffer_ptr: int, size: int, parallelism: TensorParallelism | None = None,
                                            config: ReplicateConfig | None = None, writer_partition: Any = None) -> int:
        """The same, of a tensor in memory as put_tensor_from() takes it."""
    def batch_upsert_tensor_with_parallelism_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                                  parallelisms: Sequence[TensorParallelism] | None = None,
                                                  config: ReplicateConfig | None = None,
                                                  writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
    def get_tensor_with_parallelism(self, key: str, target: ReadTarget | None = None) -> Any:
        """The tensor that `target` names: as stored, one shard, or in full; None if it cannot be had."""
    def batch_get_tensor_with_parallelism(self, keys: Sequence[str], targets: Sequence[ReadTarget] | None = None) -> list[Any]:
        """get_tensor_with_parallelism() for each key."""
    def get_tensor_with_parallelism_into(self, key: str, buffer_ptr: int, size: int, target: ReadTarget | None = None) -> Any:
        """As get_tensor_with_parallelism(), as a view of the caller's memory; None if it does not fit."""
    def batch_get_tensor_with_parallelism_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                               targets: Sequence[ReadTarget] | None = None) -> list[Any]:
        """get_tensor_with_parallelism_into() for each key."""

def bind_to_numa_node(node: int) -> None:
    """Keeps this thread on the processors of a NUMA node and prefers its memory. Logs what cannot be done."""

def get_alloc_func_addr() -> int:
    """The address of a C function `void *(size_t size)`, for pluggable allocators."""

def get_free_func_addr() -> int:
    """The address of a C function `void (void *address)`."""

def _serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]: ...
def _tensor_metadata_size() -> int: ...
def _deserialize_tensor(data: Any) -> Any: ...
def _get_pyclient_from_wrapper(wrapper: MooncakeDistributedStore) -> Any: ...
def _prefer_memory_of_node(node: int) -> None: ...
def _log_info(text: str) -> None: ...
def _log_warning(text: str) -> None: ...
def _address_of(object: Any) -> int: ...

def _is_readable(address: int, length: int) -> bool: ...

def _is_writable(address: int, length: int) -> bool: ...
