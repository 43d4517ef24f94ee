# SPDX-License-Identifier: Apache-2.0
"""What is written in Python of `mooncake.engine`; the native module takes it from here.

Methods of TransferEngine are here if they run Python code of their own: inside a native call the interpreter could not end the thread at its exit.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Coroutine, Sequence

if TYPE_CHECKING:
    from .engine import TransferEngine, TransferOpcode


def transfer_async(
    self: TransferEngine,
    target_hostname: str,
    buffers: Sequence[Any],
    peer_buffer_addresses: Sequence[int],
    lengths: Sequence[int] | None,
    opcode: TransferOpcode | int,
    after: Any = None,
) -> Coroutine[Any, Any, int]:
    """To be awaited: as batch_transfer_sync(), without blocking the event loop and without a thread per call.

    Cancelling the task stops the transfer before CancelledError arrives.
    """
    from ._asyncio import transfer  # asyncio is slow to import; most programs never get here

    return transfer(self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode, after)


# Imported when first asked for: most programs never do.
_PARTS = {
    "CoroRPCInterface": "_rpc",
    "ReceivedData": "_rpc",
    "ReceivedTensor": "_rpc",
    "RpcInterface": "_rpc",
    "SharedSegment": "_shared_segment",
    "create_rpc_client": "_rpc",
    "create_rpc_server": "_rpc",
}


def find_part(name: str) -> Any:
    """`__getattr__` of the module."""
    if name not in _PARTS:
        raise AttributeError(f"module 'mooncake.engine' has no attribute {name!r}")
    part = getattr(importlib.import_module(f"mooncake.{_PARTS[name]}"), name)
    part.__module__ = "mooncake.engine"
    setattr(sys.modules["mooncake.engine"], name, part)
    return part


def list_parts() -> list[str]:
    """`__dir__` of the module."""
    return sorted({*vars(sys.modules["mooncake.engine"]), *_PARTS})
