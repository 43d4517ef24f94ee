# SPDX-License-Identifier: Apache-2.0
"""Methods of MooncakeDistributedStore that are written in Python; the native module takes them from here.

They are those that read their arguments in many forms. What they end in is native.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

from ._parsing import parse_bool, parse_size
from ._tensor_store import TENSOR_METHODS, TENSOR_NAMES
from .buffer_pool import BufferLease, BufferPool

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore, ReplicateConfig

_INVALID_PARAMS = -600
_SIZE_MIN = 1024  # or 0
_BUFFER_MAX = 1 << 40
_SEGMENT_MAX = 1 << 62

_REQUIRED = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices", "master_server_addr")
_DEFAULTS: dict[str, Any] = {
    "global_segment_size": 16 << 20,
    "local_buffer_size": 16 << 20,
    "protocol": "tcp",
    "rdma_devices": "",
    "master_server_addr": "127.0.0.1:50051",
    "enable_ssd_offload": False,
    "ssd_offload_path": "",
    "tenant_id": "default",
    "enable_client_http_server": False,
    "client_http_port": 9300,
    "warm_dir": "",
    "warm_stop": "",
    "ipc_socket_path": "",
    "engine": None,
}
# Other spellings of the same, found in the wild.
_ALIASES = {
    "device_name": "rdma_devices",
    "device_names": "rdma_devices",
    "devices": "rdma_devices",
    "master_server_address": "master_server_addr",
    "master_server_entry": "master_server_addr",
    "master_server": "master_server_addr",
    "metadata_server_address": "metadata_server",
    "enable_offload": "enable_ssd_offload",
    "hostname": "local_hostname",
}


def _native() -> Any:
    from . import store

    return store


def _from_dict(config: Mapping[Any, Any]) -> dict[str, Any]:
    """The configuration by our names; what is unknown is said and left out."""
    known, unknown = dict(_DEFAULTS), []
    for key, value in config.items():
        name = _ALIASES.get(str(key), str(key))
        if name in ("local_hostname", "metadata_server") or name in _DEFAULTS:
            if value is not None:
                known[name] = value
        else:
            unknown.append(str(key))
    if unknown:
        _native()._log_warning(f"store: unknown configuration keys are ignored: {', '.join(sorted(unknown))}")
    return known


def _device_list(devices: Any) -> list[str]:
    if devices is None or devices == "auto-discovery":
        return []
    if not isinstance(devices, str):
        return [str(device) for device in devices]
    return [device.strip() for device in devices.split(",") if device.strip()]


def _refuse(why: str) -> int:
    _native()._log_warning(f"store: setup is refused: {why}")
    return _INVALID_PARAMS


def _start(store: MooncakeDistributedStore, config: Mapping[str, Any]) -> int:
    for name in ("local_hostname", "metadata_server", "master_server_addr", "protocol"):
        value = config.get(name)
        if value is not None and not isinstance(value, str):
            return _refuse(f"{name} must be a text, not {type(value).__name__}")
        if not (value or "").strip() and name in ("local_hostname", "metadata_server"):
            return _refuse(f"{name} is missing")
    try:
        segment = parse_size(config["global_segment_size"])
        buffer = parse_size(config["local_buffer_size"])
        with_http, http_port = parse_bool(config["enable_client_http_server"]), int(config["client_http_port"])
        with_disk = parse_bool(config["enable_ssd_offload"])
    except (TypeError, ValueError, OverflowError) as error:
        return _refuse(str(error))
    for name, size in (("global_segment_size", segment), ("local_buffer_size", buffer)):
        if size != 0 and size < _SIZE_MIN:
            return _refuse(f"{name} must be 0 or at least {_SIZE_MIN}, not {size}")
    if segment > _SEGMENT_MAX:
        return _refuse(f"global_segment_size must be at most {_SEGMENT_MAX}, not {segment}")
    if buffer > _BUFFER_MAX:
        return _refuse(f"local_buffer_size must be at most 1 TiB, not {buffer}")
    if not 0 <= http_port <= 65535:
        return _refuse(f"client_http_port is no port: {http_port}")
    paths = {}
    for name in ("ssd_offload_path", "warm_dir"):
        path = config.get(name)
        if path is not None and not isinstance(path, (str, os.PathLike)):
            return _refuse(f"{name} must be a text, not {type(path).__name__}")
        paths[name] = os.fspath(path) if path else ""
        if not isinstance(paths[name], str) or "\0" in paths[name]:
            return _refuse(f"{name} must be a text without null bytes")
    warm_stop = config.get("warm_stop") or ""
    if warm_stop not in ("", "keep", "remove"):
        return _refuse(f"warm_stop must be keep or remove, not {warm_stop!r}")
    engine = config["engine"]
    if hasattr(engine, "get_engine"):
        engine = engine.get_engine()
    return store._setup(
        str(config["local_hostname"]), str(config["metadata_server"]), segment, buffer, str(config["protocol"]).strip().lower(),
        _device_list(config["rdma_devices"]), str(config["master_server_addr"]), str(config["tenant_id"] or "default"), with_http, http_port,
        with_disk, paths["ssd_offload_path"], paths["warm_dir"], warm_stop, engine)


def setup(
    self: MooncakeDistributedStore,
    local_hostname: str | Mapping[str, Any] | None = None,
    metadata_server: str | None = None,
    global_segment_size: int | None = None,
    local_buffer_size: int | None = None,
    protocol: str | None = None,
    rdma_devices: str | None = None,
    master_server_addr: str | None = None,
    engine: Any = None,
    enable_ssd_offload: bool = False,
    ssd_offload_path: str = "",
    tenant_id: str = "default",
    enable_client_http_server: bool = False,
    client_http_port: int = 9300,
    *,
    config: Mapping[str, Any] | None = None,
) -> int:
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
    given = config if config is not None else local_hostname
    if isinstance(given, Mapping):
        return _start(self, _from_dict(given))
    arguments = {"local_hostname": local_hostname, "metadata_server": metadata_server, "global_segment_size": global_segment_size,
                 "local_buffer_size": local_buffer_size, "protocol": protocol, "rdma_devices": rdma_devices,
                 "master_server_addr": master_server_addr}
    missing = [name for name in _REQUIRED if arguments[name] is None and name != "rdma_devices"]
    if missing:
        raise TypeError(f"setup() missing required arguments: {', '.join(missing)}")
    for name in ("global_segment_size", "local_buffer_size"):
        if isinstance(arguments[name], (bool, str, bytes)):
            raise TypeError(f"setup() argument {name} must be an int, not {type(arguments[name]).__name__}")
        if arguments[name] < 0:
            raise TypeError(f"setup() argument {name} must not be negative: {arguments[name]}")
    for name in ("local_hostname", "metadata_server", "protocol", "master_server_addr"):
        if not isinstance(arguments[name], str):
            raise TypeError(f"setup() argument {name} must be a str, not {type(arguments[name]).__name__}")
    return _start(self, {**arguments, "engine": engine, "enable_ssd_offload": enable_ssd_offload, "ssd_offload_path": ssd_offload_path,
                         "tenant_id": tenant_id, "enable_client_http_server": enable_client_http_server,
                         "client_http_port": client_http_port})


def setup_dummy(self: MooncakeDistributedStore, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
    """Attaches to a mooncake_client of this host as a thin client: it shares memory with that node, which does the work.

    Returns 0, or -1: the log says why. mem_pool_size is accepted and means nothing: alloc_from_mem_pool() takes what there is.
    local_buffer_size: bytes of working memory, through which values pass that do not lie in memory of alloc_from_mem_pool() or
    MooncakeHostMemAllocator; with 0, calls that take or give objects fail.
    server_address: "host:port" of the node; only the port counts.
    """
    if not isinstance(server_address, str):
        raise TypeError(f"setup_dummy() argument server_address must be a str, not {type(server_address).__name__}")
    for name, size in (("mem_pool_size", mem_pool_size), ("local_buffer_size", local_buffer_size)):
        if isinstance(size, (bool, str, bytes)):
            raise TypeError(f"setup_dummy() argument {name} must be an int, not {type(size).__name__}")
    if mem_pool_size < 0 or not 0 <= local_buffer_size <= _BUFFER_MAX:
        _refuse(f"sizes of {mem_pool_size} and {local_buffer_size} bytes")
        return -1
    return 0 if self._setup_thin(local_buffer_size, server_address) == 0 else -1


def init_all(self: MooncakeDistributedStore, protocol: str, device_name: str, mount_segment_size: int) -> int:
    """Older form of setup(), for a master and a directory with fixed addresses on this host."""
    return setup(self, "localhost:12345", "127.0.0.1:2379", mount_segment_size, 1 << 30, protocol, device_name, "127.0.0.1:50051")


def put_parts(self: MooncakeDistributedStore, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
    """put() of several rows of bytes as one value. Returns 0 and stores nothing if they are all empty."""
    return self._put_parts(key, parts, config, False)


def upsert_parts(self: MooncakeDistributedStore, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
    """As put_parts(), replacing a value that is there."""
    return self._put_parts(key, parts, config, True)


def bind_to_numa_node(node: int) -> None:
    """Keeps this thread on the processors of a NUMA node and prefers its memory. Logs what cannot be done."""
    try:
        with open(f"/sys/devices/system/node/node{int(node)}/cpulist", encoding="ascii") as file:
            processors = _parse_cpu_list(file.read())
        if processors:
            os.sched_setaffinity(0, processors)
    except (OSError, ValueError) as error:
        _native()._log_warning(f"bind_to_numa_node({node}): {error}")
        return
    _native()._prefer_memory_of_node(int(node))


def _parse_cpu_list(text: str) -> set[int]:
    """"0-3,8" -> {0, 1, 2, 3, 8}"""
    processors: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            processors.update(range(int(first), int(last or first) + 1))
    return processors


def _get_pyclient_from_wrapper(wrapper: MooncakeDistributedStore) -> Any:
    return wrapper._get_pyclient_capsule()


METHODS = {method.__name__: method for method in (setup, setup_dummy, init_all, put_parts, upsert_parts)}
NAMES = {
    "bind_to_numa_node": bind_to_numa_node,
    "_get_pyclient_from_wrapper": _get_pyclient_from_wrapper,
    "BufferPool": BufferPool,
    "RegisteredBufferPool": BufferPool,
    "BufferLease": BufferLease,
    "RegisteredBufferLease": BufferLease,
    **TENSOR_NAMES,
}
