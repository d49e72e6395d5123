"""A Ray of the bench's own: one that the user has started is another one, and is left alone."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack

from moa_server.cluster.connection import ADDRESS_VARIABLE
from moa_server.cluster.local_ray import end_local, find_local


def own_ray(stack: ExitStack) -> None:
    """Has this process remember the Ray that it starts in a folder of its own; ends it when the stack is closed."""
    os.environ["XDG_STATE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-"))
    os.environ.pop(ADDRESS_VARIABLE, None)
    stack.callback(_end)


def _end() -> None:
    if head := find_local():
        end_local(head)
