# SPDX-License-Identifier: Apache-2.0
"""What is written in Python of `mooncake.engine`; the native module takes it from here.

Methods of TransferEngine are here if they run Python code of their own: inside a native call the interpreter could not end the thread at its exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Coroutine, Sequence

from ._rpc import ReceivedData, ReceivedTensor, RpcInterface, create_rpc_client, create_rpc_server
from ._shared_segment import SharedSegment

if TYPE_CHECKING:
    from .engine import TransferEngine, TransferOpcode


def transfer_async(
    self: TransferEngine,
    target_hostname: str,
    buffers: Sequence[Any],
    peer_buffer_addresses: Sequence[int],
    lengths: Sequence[int] | None,
    opcode: TransferOpcode | int,
) -> Coroutine[Any, Any, int]:
    """To be awaited: as batch_transfer_sync(), without blocking the event loop and without a thread per call.

    Cancelling the task stops the transfer before CancelledError arrives.
    """
    from ._asyncio import transfer  # asyncio is slow to import; most programs never get here

    return transfer(self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode)


NAMES: dict[str, Any] = {
    part.__name__: part
    for part in (ReceivedData, ReceivedTensor, RpcInterface, SharedSegment, create_rpc_client, create_rpc_server)
}
for _part in NAMES.values():
    _part.__module__ = "mooncake.engine"
NAMES["CoroRPCInterface"] = RpcInterface  # an older name
