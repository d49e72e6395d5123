"""The addresses of a name, looked up without holding up an event loop.

State: the thread of a look-up under way. Invariant: no caller waits too long. The system's resolver cannot be
interrupted, so each look-up has a thread of its own, which keeps no program from ending.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial

from moa_shared.programs.own_thread import run_in_own_thread


async def look_up(host: str, seconds: float) -> tuple[str, ...]:
    """The addresses of a host, as its resolver orders them; of those of IPv4 and IPv6 see `one_family`.

    Args:
        seconds: how long to wait.

    Returns:
        without brackets, each once; empty: there are none, or they did not come in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await run_in_own_thread(partial(addresses_of, host), "name look-up")
    except TimeoutError:
        return ()


def addresses_of(host: str) -> tuple[str, ...]:
    """The same, for as long as it takes."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=getattr(socket, "AI_ADDRCONFIG", 0))
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))


def one_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Those of one version of IP, since a machine may have an address of each.

    Of the version that the resolver puts first if it has several, else of the other one if that has.
    """
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    others = [each for each in addresses if each not in first]
    return tuple(others if len(others) > 1 >= len(first) else first)
