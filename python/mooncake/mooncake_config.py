# SPDX-License-Identifier: Apache-2.0
"""What a store is set up with, from a JSON file or from the environment."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping

from ._parsing import parse_bool as _parse_bool
from ._parsing import parse_size as _parse_segment_size

logger = logging.getLogger(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200  # 3.125 GiB
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824  # 1 GiB

_KNOWN_PROTOCOLS = frozenset(
    "tcp rdma efa cxl cxi ascend ub ubshmem barex hip musa maca sunrise_link nvlink nvlink_intra intra_nvlink shm nvmeof rpc_only".split())


def _parse_protocol(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"Invalid protocol: {value!r}")
    protocol = value.strip().lower()
    if protocol not in _KNOWN_PROTOCOLS:
        logger.warning("Unrecognised protocol %r; it is passed on as it is", protocol)
    return protocol


def _parse_port(value: Any) -> int:
    port = int(value)
    if not 0 <= port <= 65535:
        raise ValueError(f"client_http_port is no port: {value!r}")
    return port


def _same(value: Any) -> Any:
    return value


def _or(otherwise: str) -> Callable[[Any], str]:
    return lambda value: otherwise if value is None else str(value)


# Per field: the variable, what it is if neither says anything (None in a file: it must), and how it is read.
_FIELDS: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "local_hostname": ("MOONCAKE_LOCAL_HOSTNAME", "localhost", _same),
    "metadata_server": ("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE", _same),
    "global_segment_size": ("MOONCAKE_GLOBAL_SEGMENT_SIZE", DEFAULT_GLOBAL_SEGMENT_SIZE, _parse_segment_size),
    "local_buffer_size": ("MOONCAKE_LOCAL_BUFFER_SIZE", DEFAULT_LOCAL_BUFFER_SIZE, _parse_segment_size),
    "protocol": ("MOONCAKE_PROTOCOL", "tcp", _same),
    "device_name": ("MOONCAKE_DEVICE", "", _or("")),
    "master_server_address": ("MOONCAKE_MASTER", None, _same),
    "enable_ssd_offload": ("MOONCAKE_OFFLOAD_ENABLED", False, _parse_bool),
    "ssd_offload_path": ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "", _or("")),
    "tenant_id": ("MOONCAKE_TENANT_ID", "default", _or("default")),
    "enable_client_http_server": ("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", False, _parse_bool),
    "client_http_port": ("MOONCAKE_CLIENT_HTTP_PORT", 9300, _parse_port),
}
_NEEDED = ("local_hostname", "metadata_server", "master_server_address")


@dataclass
class MooncakeConfig:
    """The arguments of MooncakeDistributedStore.setup(), by the names that files and variables use. ValueError if one makes no sense."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        for name in _NEEDED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be a text that is not blank: {value!r}")
        for name in ("global_segment_size", "local_buffer_size"):
            size = getattr(self, name)
            if not isinstance(size, float) and not hasattr(size, "__index__"):
                raise TypeError(f"{name} must be a number, not {type(size).__name__}")
            if size < 0:
                raise ValueError(f"{name} must not be negative: {size!r}")
        self.protocol = _parse_protocol(self.protocol)

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """From a JSON file. ValueError if a field is missing or makes no sense."""
        with open(file_path, encoding="utf-8") as file:
            config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError(f"{file_path}: a JSON object is expected")
        for name in _NEEDED:
            if name not in config:
                raise ValueError(f"Missing required config field: {name}")
        return _build(config)

    @staticmethod
    def load_from_env(master: str = "") -> MooncakeConfig:
        """From the file that MOONCAKE_CONFIG_PATH names, else from the MOONCAKE_* variables. `master` is used where neither names one."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return MooncakeConfig.from_file(path)
        master = os.environ.get("MOONCAKE_MASTER") or master
        if not master:
            raise ValueError("Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.")
        given = {name: os.environ[variable] for name, (variable, _, _) in _FIELDS.items() if variable in os.environ}
        return _build({**given, "master_server_address": master})


def _build(given: Mapping[str, Any]) -> MooncakeConfig:
    values = {}
    for field in fields(MooncakeConfig):
        _, otherwise, parse = _FIELDS[field.name]
        values[field.name] = parse(given.get(field.name, otherwise))
    return MooncakeConfig(**values)
