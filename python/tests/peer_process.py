# SPDX-License-Identifier: Apache-2.0
"""The other end of a transfer: a process of its own that answers one JSON line per JSON line. Driven by helpers.Peer."""

import json
import sys

import numpy as np

from mooncake.engine import TransferEngine


class Commands:
    def __init__(self, setup: dict) -> None:
        self.engine = TransferEngine()
        self.code = self.engine.initialize(setup["host"], setup["metadata"], setup["protocol"], "")
        self.size = setup["size"]
        self.memory = np.zeros(0 if setup["managed"] else self.size, np.uint8)
        self.address = self.memory.ctypes.data
        if self.code == 0 and setup["managed"]:
            self.address = self.engine.allocate_managed_buffer(self.size)
        elif self.code == 0:
            self.code = self.engine.register_memory(self.address, self.size)

    def hello(self) -> dict:
        if self.code != 0:
            return {"code": self.code, "error": self.engine.last_error()}
        return {"code": 0, "port": self.engine.get_rpc_port(), "address": self.address, "size": self.size}

    def read(self, offset: int, length: int) -> str:
        return self.engine.read_bytes_from_buffer(self.address + offset, length).hex()

    def write(self, offset: int, data: str) -> int:
        return self.engine.write_bytes_to_buffer(self.address + offset, bytes.fromhex(data))

    def notifies(self) -> list:
        return [[n.name, n.msg] for n in self.engine.get_notifies()]

    def unregister(self) -> int:
        return self.engine.unregister_memory(self.address)

    def close(self) -> None:
        self.engine.close()

    def pull(self, target: str, offset: int, peer_address: int, length: int) -> int:
        """The peer as initiator."""
        return self.engine.transfer_sync_read(target, self.address + offset, peer_address, length)

    def push(self, target: str, offset: int, peer_address: int, length: int) -> int:
        """The peer as initiator."""
        return self.engine.transfer_sync_write(target, self.address + offset, peer_address, length)


def main() -> None:
    commands = Commands(json.loads(sys.stdin.readline()))
    print(json.dumps(commands.hello()), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(commands, call.pop("call"))(**call)), flush=True)


if __name__ == "__main__":
    main()
