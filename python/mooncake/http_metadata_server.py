# SPDX-License-Identifier: Apache-2.0
"""The HTTP metadata server: a small key-value store that engines use to find each other.

    GET, PUT, DELETE  /metadata?key=K

Values live in memory and are lost when the server ends. There is no authentication: run it inside a trusted network. Needs
nothing but aiohttp, so it can run on a host without the native modules.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from enum import Enum

from aiohttp import web

from ._http_site import Connections, Site

__all__ = ["KVBootstrapServer", "KVPoll", "main"]

log = logging.getLogger("mooncake.http_metadata_server")

VALUE_BYTES_MAX = 16 << 20
STOP_TIMEOUT_S = 2.0


class KVPoll(Enum):
    """States that poll() can name; the numbers are part of the interface. A server is only ever the first or the last."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


def _answer(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, content_type="application/json")


class KVBootstrapServer:
    """Serves `/metadata` from a thread of its own. `store` maps keys to bytes; only the server's thread changes it.

    With port 0 the system chooses one; `port` is the real one after run().
    """

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self.host = host
        self.store: dict[str, bytes] = {}
        self._connections = Connections()
        self.app = web.Application(client_max_size=VALUE_BYTES_MAX, middlewares=[self._connections.middleware])
        self.app.router.add_route("*", "/metadata", self._handle_metadata)
        self.thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stop_requested = False
        self._started = threading.Event()
        self._listening = False

    # ---- control, from any thread

    def run(self) -> threading.Thread:
        """Starts the server and returns its thread, once it listens or has failed to (poll() tells which)."""
        if self.thread is not None:
            raise RuntimeError("a KVBootstrapServer runs only once")
        self.thread = threading.Thread(target=self._run_server, name="mooncake-metadata", daemon=True)
        self.thread.start()
        self._started.wait()
        return self.thread

    def poll(self) -> KVPoll:
        """Success while the server answers, Failed before, afterwards and when it could not listen."""
        alive = self.thread is not None and self.thread.is_alive()
        return KVPoll.Success if alive and self._listening else KVPoll.Failed

    def close(self) -> None:
        """Stops the server and waits for its thread. May be called again, and before run()."""
        if self.thread is None:
            return
        self._request_stop()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _request_stop(self) -> None:
        # Either the server's thread sees the flag after it has set up its loop, or we see the loop here.
        self._stop_requested = True
        if self._loop is not None and self._stop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # the loop has ended

    # ---- the server's thread

    def _run_server(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as problem:
            log.error("cannot listen on %s:%d: %s", self.host, self.port, problem)
        except Exception:
            log.exception("the metadata server failed")
        finally:
            self._listening = False
            self._started.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stop_requested:
            self._stop.set()
        runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=STOP_TIMEOUT_S)
        await runner.setup()
        try:
            await Site(runner, self.host, self.port, self._connections).start()
            self.port = runner.addresses[0][1]
            self._listening = True
            self._started.set()
            log.info("metadata server listens on %s:%d", self.host, self.port)
            await self._stop.wait()
        finally:
            self._listening = False
            await runner.cleanup()

    async def _handle_metadata(self, request: web.Request) -> web.Response:
        key = request.query.get("key", "").strip()
        if not key:
            return _answer(400, "metadata key is required")
        method = request.method
        if method == "GET":
            return self._get(key)
        if method == "PUT":
            return self._put(key, await request.read())
        if method == "DELETE":
            return self._delete(key)
        return _answer(405, "Method not allowed")

    def _get(self, key: str) -> web.Response:
        value = self.store.get(key)
        log.debug("get %r: %s", key, "not found" if value is None else f"{len(value)} bytes")
        if value is None:
            return _answer(404, "metadata not found")
        return web.Response(body=value, content_type="application/json")

    def _put(self, key: str, value: bytes) -> web.Response:
        # An address entry is never replaced, so that two live processes of one name are noticed.
        if "rpc_meta" in key and key in self.store:
            log.warning("put %r refused: it exists", key)
            return _answer(400, "Duplicate rpc_meta key not allowed")
        self.store[key] = value
        log.debug("put %r: %d bytes", key, len(value))
        return _answer(200, "metadata updated")

    def _delete(self, key: str) -> web.Response:
        value = self.store.pop(key, None)
        log.debug("delete %r: %s", key, "not found" if value is None else "done")
        if value is None:
            return _answer(404, "metadata not found")
        return _answer(200, "metadata deleted")


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mooncake_http_metadata_server", description="HTTP metadata server of Mooncake", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="port to listen on; 0 lets the system choose")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], help="what is logged")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a server until SIGINT or SIGTERM. Returns 1 if it cannot listen or ends by itself."""
    options = parse_args(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(message)s")
    server = KVBootstrapServer(options.port, options.host)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server._request_stop())
    server.run().join()
    return 0 if server._stop_requested else 1


if __name__ == "__main__":
    sys.exit(main())
