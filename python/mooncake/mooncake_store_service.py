# SPDX-License-Identifier: Apache-2.0
"""A member of the pool with a REST interface: `mc_store_rest_server`, or `python -m mooncake.mooncake_store_service`."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import signal
import sys
from dataclasses import fields
from typing import Any, Awaitable, Callable, Sequence

from aiohttp import web

from ._http_site import Connections, Site
from .mooncake_config import MooncakeConfig
from .store import MooncakeDistributedStore

logger = logging.getLogger(__name__)

_BODY_BYTES_MAX = 100 << 20
_LINE_BYTES_MAX = 256 << 10  # of a request: keys are part of the path
_RETRY_S = 1.0
_STOP_TIMEOUT_S = 2  # for requests under way
_GRACE_MAX_S = 3600
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# What setup() calls the fields of MooncakeConfig that have other names there.
_SETUP_NAMES = {"device_name": "rdma_devices", "master_server_address": "master_server_addr"}
_FIELD_NAMES = {name: field for field, name in _SETUP_NAMES.items()}


class _BadRequest(Exception):
    """Becomes a 400 with its text."""


def _answer(http_status: int = 200, **fields: Any) -> web.Response:
    return web.json_response(fields, status=http_status)


def _handler(method: Callable[[MooncakeStoreService, web.Request], Awaitable[web.Response]]) -> Callable[..., Awaitable[web.Response]]:
    """Turns what goes wrong into a JSON answer."""

    @functools.wraps(method)
    async def handle(self: MooncakeStoreService, request: web.Request) -> web.Response:
        try:
            return await method(self, request)
        except _BadRequest as problem:
            return _answer(400, error=str(problem))
        except (web.HTTPException, ConnectionError):  # the client's connection: the store has codes instead
            raise
        except Exception as problem:
            logger.exception("%s failed", method.__name__)
            return _answer(500, error=str(problem))

    return handle


def _shm_name_to_path(name: Any) -> str | None:
    """"/pool" or "pool" -> "/dev/shm/pool". None for names that lead elsewhere."""
    if not isinstance(name, str):
        return None
    bare = name[1:] if name.startswith("/") else name
    if not bare or "/" in bare or bare in (".", "..") or "\0" in bare:
        return None
    return f"/dev/shm/{bare}"


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, LookupError, RecursionError) as problem:  # no JSON, or of an unknown charset, or nested too deeply
        raise _BadRequest(f"the body is not JSON: {problem}") from None
    except web.RequestPayloadError as problem:  # compressed, it says
        raise _BadRequest(f"the body cannot be read: {problem}") from None
    if not isinstance(body, dict):
        raise _BadRequest("a JSON object is expected")
    return body


def _is_integer(value: Any, least: int, most: int = 2**63 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _integer(body: dict[str, Any], name: str, otherwise: int, most: int = 2**63 - 1) -> int:
    value = body.get(name, otherwise)
    if not _is_integer(value, 0, most):
        raise _BadRequest(f"{name} must be an integer from 0 to {most}")
    return value


def _text(body: dict[str, Any], name: str, otherwise: str) -> str:
    value = body.get(name, otherwise)
    if not _is_text(value):
        raise _BadRequest(f"{name} must be a text")
    return value


def _is_text(value: Any) -> bool:
    """Also one that can be written as bytes."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _segment_ids(body: dict[str, Any]) -> list[str]:
    ids = body.get("segment_ids")
    if isinstance(ids, str):
        ids = [ids]
    if not isinstance(ids, list) or not ids or not all(_is_text(one) and one for one in ids):
        raise _BadRequest("Missing segment_ids: a text or a list of texts is expected")
    return ids


def _grace(body: dict[str, Any]) -> list[int]:
    """What unmount calls get beside the ids: nothing where nothing was said."""
    return [_integer(body, "grace_period_seconds", 0)] if "grace_period_seconds" in body else []


class MooncakeStoreService:
    """Owns one store; the handle_* coroutines serve its REST interface. Used in one event loop."""

    _runner: web.AppRunner | None = None

    def __init__(self, config_path: str | None = None, cli_config: dict[str, str] | None = None) -> None:
        self.store: Any = None
        given = {_FIELD_NAMES.get(name, name): value for name, value in (cli_config or {}).items()}
        self.config = (MooncakeConfig.from_file(config_path) if config_path else
                       MooncakeConfig.load_from_env(master=given.get("master_server_address", "")))
        for name, value in given.items():
            self._override(name, value)
        self.current_mode = "prefill"  # or "decode": a segment was mounted by /api/reconfigure
        self.mounted_segment_ids: list[str] = []
        self.last_mount_info: dict[str, Any] = {}
        self._connections = Connections()
        self._state_lock = asyncio.Lock()

    # ---- life

    def setup_config(self) -> dict[str, Any]:
        """What the store is set up with."""
        names = [field.name for field in fields(MooncakeConfig) if hasattr(self.config, field.name)]
        return {_SETUP_NAMES.get(name, name): getattr(self.config, name) for name in names}

    def _override(self, name: str, value: str) -> None:
        """From the command line: a text, which setup() reads."""
        if hasattr(self.config, name):
            setattr(self.config, name, value)
        else:
            logger.warning("%s is no field of the configuration", name)

    async def start_store_service(self, max_wait_time: float = 60, shutdown_event: asyncio.Event | None = None) -> bool:
        """Sets the store up, trying again until that works, the time is over or shutdown is asked for."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max_wait_time
        while loop.time() < end and (shutdown_event is None or not shutdown_event.is_set()):
            if await self._set_up():
                if shutdown_event is not None and shutdown_event.is_set():
                    await self._close_store()
                    return False
                logger.info("the store is set up as %s", self.store.get_hostname())
                return True
            await _wait(shutdown_event, min(_RETRY_S, max(end - loop.time(), 0)))
        return False

    async def _set_up(self) -> bool:
        try:
            self.store = MooncakeDistributedStore()
            code = await self._run(self.store.setup, self.setup_config())
        except Exception:
            logger.exception("setup failed")
            return False
        if code != 0:
            logger.warning("setup failed with %d", code)
        return code == 0

    async def start_http_service(self, port: int = 8080, host: str = "0.0.0.0") -> bool:
        """Serves from now on."""
        self._runner = web.AppRunner(self.make_app(), access_log=None, shutdown_timeout=_STOP_TIMEOUT_S, max_line_size=_LINE_BYTES_MAX)
        await self._runner.setup()
        await Site(self._runner, host, port, self._connections).start()
        logger.info("the REST service listens on %s:%d", host, self._runner.addresses[0][1])
        return True

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._connections.middleware])
        app.add_routes([
            web.put("/api/put", self.handle_put),
            web.get(r"/api/get/{key:[\s\S]+}", self.handle_get),
            web.get(r"/api/exist/{key:[\s\S]+}", self.handle_exist),
            web.delete(r"/api/remove/{key:[\s\S]+}", self.handle_remove),
            web.delete("/api/remove_all", self.handle_remove_all),
            web.post("/api/mount", self.handle_mount),
            web.post("/api/unmount", self.handle_unmount),
            web.post("/api/mount_shm", self.handle_mount_shm),
            web.post("/api/unmount_shm", self.handle_unmount_shm),
            web.post("/api/unmount_local_disk", self.handle_unmount_local_disk),
            web.post("/api/reconfigure", self.handle_reconfigure),
        ])
        return app

    async def stop(self) -> None:
        """Ends serving, then leaves the pool."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._close_store()

    async def _close_store(self) -> None:
        store, self.store = self.store, None
        code = await self._run(store.close) if store is not None else 0
        if code:
            logger.warning("closing the store answered %s", code)

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """In a thread: the store's calls block."""
        return await asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *arguments))

    # ---- values

    @_handler
    async def handle_put(self, request: web.Request) -> web.Response:
        body = await _body(request)
        key, value = body.get("key"), body.get("value")
        if not _is_text(key) or not key or not _is_text(value) or not value:
            raise _BadRequest("Missing key or value")
        code = await self._run(self.store.put, key, value.encode())
        return _result(code, "PUT operation failed", status="success")

    @_handler
    async def handle_get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        exists = await self._run(self.store.is_exist, key)
        if exists < 0:
            return _answer(500, error="Exist check failed")
        value = await self._run(self.store.get, key) if exists else b""
        if value is None:
            return _answer(500, error="GET operation failed")
        if not exists or (not value and await self._run(self.store.is_exist, key) <= 0):  # b"" may mean that it went meanwhile
            return _answer(404, error="Key not found")
        return web.Response(body=value, content_type="application/octet-stream")

    @_handler
    async def handle_exist(self, request: web.Request) -> web.Response:
        exists = await self._run(self.store.is_exist, request.match_info["key"])
        return _answer(500, error="Exist check failed") if exists < 0 else _answer(exists=bool(exists))

    @_handler
    async def handle_remove(self, request: web.Request) -> web.Response:
        return _result(await self._run(self.store.remove, request.match_info["key"]), "Remove operation failed", status="success")

    @_handler
    async def handle_remove_all(self, request: web.Request) -> web.Response:
        removed = await self._run(self.store.remove_all)
        return _result(min(removed, 0), "RemoveAll operation failed", status=f"success removed {removed} keys")

    # ---- segments

    @_handler
    async def handle_mount(self, request: web.Request) -> web.Response:
        body = await _body(request)
        size = body.get("size")
        if not _is_integer(size, 1):
            raise _BadRequest("Invalid size: a positive integer is expected")
        protocol, location = _text(body, "protocol", self.config.protocol), _text(body, "location", "")
        mounted = await self._run(self.store.allocate_and_mount_segment, size, protocol, location)
        return _result(mounted["ret"], "Allocate and mount failed", status="success", segment_ids=mounted["segment_ids"],
                       allocated_size=mounted.get("allocated_size", size))

    @_handler
    async def handle_unmount(self, request: web.Request) -> web.Response:
        body = await _body(request)
        ids, grace = _segment_ids(body), _grace(body)
        return _result(await self._run(self.store.unmount_and_free_segment, ids, *grace), "Unmount and free failed", status="success")

    @_handler
    async def handle_mount_shm(self, request: web.Request) -> web.Response:
        body = await _body(request)
        path = _shm_name_to_path(body.get("name"))
        if path is None or not _is_integer(body.get("size"), 1):
            raise _BadRequest("Missing or invalid name or size")
        protocol, location = _text(body, "protocol", self.config.protocol), _text(body, "location", "")
        mounted = await self._run(self.store.mount_segment, path, body["size"], _integer(body, "offset", 0), protocol, location)
        return _result(mounted["ret"], "Mount failed", status="success", segment_ids=mounted["segment_ids"])

    @_handler
    async def handle_unmount_shm(self, request: web.Request) -> web.Response:
        body = await _body(request)
        ids, grace = _segment_ids(body), _grace(body)
        async with self._state_lock:
            failed = await self._unmount_each(ids, *grace)
            gone = set(ids) - set(failed)
            if gone & set(self.mounted_segment_ids):
                self.mounted_segment_ids = [one for one in self.mounted_segment_ids if one not in gone]
                if not self.mounted_segment_ids:
                    self.current_mode = "prefill"
        if failed:
            return _answer(500, error="Unmount failed for one or more segments", failed_segment_ids=failed)
        return _answer(status="success")

    @_handler
    async def handle_unmount_local_disk(self, request: web.Request) -> web.Response:
        grace = _integer(await _body(request), "grace_period_seconds", 0, most=_GRACE_MAX_S)
        return _result(await self._run(self.store.unmount_local_disk_segment, grace), "Unmount failed", status="success")

    @_handler
    async def handle_reconfigure(self, request: web.Request) -> web.Response:
        body = await _body(request)
        mode = str(body.get("mode")).lower()
        if mode not in ("decode", "prefill"):
            raise _BadRequest("Invalid mode: decode or prefill is expected")
        async with self._state_lock:
            return await (self._to_decode(body) if mode == "decode" else self._to_prefill())

    async def _to_decode(self, body: dict[str, Any]) -> web.Response:
        """Mounts the new segment first, then takes the old ones back."""
        if not _is_text(body.get("path")) or not body["path"] or not _is_integer(body.get("size"), 1):
            raise _BadRequest("Missing path or size for decode mode")
        wanted = {"path": body["path"], "size": body["size"], "offset": _integer(body, "offset", 0),
                  "protocol": _text(body, "protocol", self.config.protocol), "location": _text(body, "location", "")}
        mounted = await self._run(self.store.mount_segment, *wanted.values())
        if mounted["ret"] != 0:
            what = f"Mount failed, ret={mounted['ret']}"
            if self.mounted_segment_ids:
                return _answer(500, error=f"{what}; keeping previous decode segments", mode=self.current_mode)
            self.current_mode, self.last_mount_info = "prefill", {}
            return _answer(500, error=what, mode=self.current_mode)
        failed = await self._unmount_each(self.mounted_segment_ids)
        if failed:  # they stay on the list, for the next time
            logger.warning("old segments could not be unmounted: %s", ", ".join(failed))
        self.mounted_segment_ids = [*mounted["segment_ids"], *failed]
        self.current_mode, self.last_mount_info = "decode", wanted
        return _answer(status="success", mode=self.current_mode, segment_ids=mounted["segment_ids"])

    async def _to_prefill(self) -> web.Response:
        if self.mounted_segment_ids:
            code = await self._run(self.store.unmount_segment, list(self.mounted_segment_ids))
            if code != 0:
                return _result(code, "Unmount failed")
        self.mounted_segment_ids = []
        self.current_mode, self.last_mount_info = "prefill", {}
        return _answer(status="success", mode=self.current_mode)

    async def _unmount_each(self, ids: Sequence[str], *grace: int) -> list[str]:
        """Those that could not be unmounted."""
        return [one for one in list(ids) if await self._run(self.store.unmount_segment, [one], *grace) != 0]


def _result(code: int, failure: str, **fields: Any) -> web.Response:
    return _answer(500, error=f"{failure}, ret={code}") if code else _answer(**fields)


async def _wait(event: asyncio.Event | None, seconds: float) -> None:
    if event is None:
        await asyncio.sleep(seconds)
        return
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        pass


# ---- the program


def _install_shutdown_signal_handlers(loop: asyncio.AbstractEventLoop, shutdown_event: asyncio.Event) -> None:
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, shutdown_event.set)
        except NotImplementedError:  # not every loop can
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(shutdown_event.set))


def _unblock_shutdown_signals() -> None:
    """Some parents start us with them blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _defined(texts: Sequence[str]) -> dict[str, str]:
    """What -D key=value says."""
    defined = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name:
            defined[name] = value
        else:
            logger.warning("-D %s: key=value is expected", text)
    return defined


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mc_store_rest_server", description="A member of the pool with a REST interface.")
    parser.add_argument("--config", help="JSON file; without it MOONCAKE_CONFIG_PATH, or MOONCAKE_MASTER (or -Dmaster_server_address) and the like")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="KEY=VALUE", help="overrides a field of the configuration")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on; 0 lets the system choose")
    parser.add_argument("--max-wait-time", type=float, default=60, help="seconds to wait for the master")
    return parser.parse_args(arguments)


async def main() -> None:
    """Serves until SIGINT or SIGTERM. RuntimeError if the store cannot be set up."""
    options = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    shutdown = asyncio.Event()
    _unblock_shutdown_signals()
    _install_shutdown_signal_handlers(asyncio.get_running_loop(), shutdown)
    service = MooncakeStoreService(options.config, _defined(options.define))
    try:
        if not await service.start_store_service(max_wait_time=options.max_wait_time, shutdown_event=shutdown):
            if shutdown.is_set():
                return
            raise RuntimeError("the store could not be set up")
        await service.start_http_service(options.port)
        await shutdown.wait()
    finally:
        await service.stop()


def sync_main() -> int:
    try:
        asyncio.run(main())
    except (OSError, RuntimeError, ValueError) as problem:
        logger.error("%s", problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(sync_main())
