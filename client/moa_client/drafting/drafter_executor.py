"""The device's inference thread: all work of drafters runs here, one call after the other, never on the event loop.

State: one thread. Its callers bound the queue: one draft step at a time, and memory as the credit allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class DrafterExecutor:
    """Runs calls in order on one thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafter")

    def submit(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        """Runs a call after those before it; the future holds its result or exception."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Lets the running call end; accepts no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
