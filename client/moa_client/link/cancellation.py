"""Cancellation of a task that waits on gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeded_cancellation() -> Iterator[None]:
    """In this block, a task that waits on a call ends when it is cancelled.

    gRPC loses a cancellation that comes just as the status of a call arrives: it waits for the call's beginning in a
    task of its own, which takes the cancellation to be meant for itself, and then raises the status. A loop that tries
    again after a failed call would never end.

    Raises:
        CancelledError: the task was cancelled, however the block has ended.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None
