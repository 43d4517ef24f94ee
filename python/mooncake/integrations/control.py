# SPDX-License-Identifier: Apache-2.0
"""What ranks say to each other about a hand-over: msgpack maps, each behind its length (4 bytes, big endian), over TCP; and the thread they are said in.

The first message of a connection is {"hello": PROTOCOL, "version": text} in both directions; whoever does not speak the same protocol is refused with a text
that names both versions. docs/wire/handover.md has the rest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgpack

from .. import __version__

PROTOCOL = 1
MESSAGE_BYTES_MAX = 64 << 20  # the block table of a very long request, many times over
HELLO_TIMEOUT_S = 10.0

T = TypeVar("T")


class Refused(RuntimeError):
    """The other side does not want to talk to us, and said why."""


def frame(message: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack(">I", len(body)) + body


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(frame(message))
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    """ConnectionError: it is over, or what came is no message."""
    try:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        if length > MESSAGE_BYTES_MAX:
            raise ConnectionError(f"a message of {length} bytes")
        message = msgpack.unpackb(await reader.readexactly(length), strict_map_key=False)
    except asyncio.IncompleteReadError as problem:
        raise ConnectionError("the connection ended") from problem
    except (ValueError, msgpack.UnpackException) as problem:
        raise ConnectionError(f"no message: {problem}") from problem
    if not isinstance(message, dict):
        raise ConnectionError("no message: not a map")
    return message


def hello(**more: Any) -> dict[str, Any]:
    return {"hello": PROTOCOL, "version": __version__, **more}


def check_hello(said: dict[str, Any], who: str) -> None:
    """Refused: with both versions in the text."""
    if "refused" in said:
        raise Refused(f"{who}: {said['refused']}")
    if said.get("hello") != PROTOCOL:
        raise Refused(
            f"{who} speaks protocol {said.get('hello')!r} (mooncake {said.get('version', 'of unknown version')}), "
            f"here it is protocol {PROTOCOL} (mooncake {__version__}): use the same version on both sides"
        )


class LoopThread:
    """An event loop in a thread of its own. close() ends what runs in it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def call(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Runs it there, some time after those that were called before."""
        try:
            self.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            pass  # closed: nobody is left to be told

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self.call(self.loop.stop)
        self._thread.join()
