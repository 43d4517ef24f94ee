# SPDX-License-Identifier: Apache-2.0
"""The store for programs with an event loop."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Callable, Coroutine

from .store import MooncakeDistributedStore

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store of whose every method `name` there is a coroutine `async_name`, run in the default executor of the event loop.

    Cancelling the task does not stop the call, which may use the memory it was given until it ends.
    """

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if not name.startswith(_PREFIX):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        method = getattr(self, name[len(_PREFIX):], None)
        if not callable(method):
            raise AttributeError(f"{type(self).__name__!r} object has no method {name[len(_PREFIX):]!r} to be called as {name!r}")

        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, functools.partial(method, *arguments, **options))

        return call
