"""The event loop of both ends: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio


def make_runner() -> asyncio.Runner:
    """A runner on the fastest loop there is; what that brings: docs/adr/0019-uvloop.md."""
    try:
        import uvloop
    except ImportError:  # no wheel for this system or this Python
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def loop_name() -> str:
    """The package of the running loop, for logs: `uvloop` or `asyncio`."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]
