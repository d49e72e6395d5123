"""Asks the user about calls of tools: by a key on the terminal, or where nobody can be asked, by what is allowed.

State: what was typed before a question was shown. Invariant: a key that was typed before answers nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from select import select

from moa_client.chat.ask import Permit
from moa_client.chat.messages import ASK_WORDS, not_run_words
from moa_client.conversation.events import CallWanted, Permission

ALL = "all"
KEYS = {"y": Permission.ONCE, "n": Permission.DENIED, "a": Permission.ALWAYS}
MOST_KEYS = 4096  # bytes at a time


def unasked(allowed: Sequence[str], say: Callable[[str], None]) -> Permit:
    """What is said of calls where nobody can be asked.

    Args:
        say: tells the user what was not run.
    """

    async def permit(wanted: CallWanted) -> Permission:
        if is_allowed(wanted, allowed):
            return Permission.ALWAYS
        say(not_run_words(wanted))
        return Permission.DENIED

    return permit


def is_allowed(wanted: CallWanted, allowed: Sequence[str]) -> bool:
    """Whether a tool may be run without being asked for."""
    return f"{wanted.server}/{wanted.tool}" in allowed or ALL in allowed


class KeyPermission:
    """Asks on the terminal, whose keys come as they are typed.

    Args:
        allowed: tools that are run without asking, as SERVER/TOOL, or ALL.
    """

    def __init__(self, terminal: int, allowed: Sequence[str], say: Callable[[str], None]) -> None:
        self._terminal = terminal
        self._allowed = allowed
        self._say = say
        self._typed = b""

    def take_typed(self) -> str:
        """What was typed before a question was shown, for the next line."""
        typed, self._typed = self._typed, b""
        return typed.decode(errors="replace").replace("\r", "\n").rstrip("\n")

    async def __call__(self, wanted: CallWanted) -> Permission:
        if is_allowed(wanted, self._allowed):
            return Permission.ALWAYS
        while select([self._terminal], [], [], 0)[0] and (early := os.read(self._terminal, MOST_KEYS)):
            self._typed += early
        self._say(ASK_WORDS)
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Permission] = loop.create_future()

        def on_key() -> None:
            key = os.read(self._terminal, 1).decode(errors="replace").lower()
            if not key:
                decided.set_result(Permission.DENIED)  # the terminal is gone
            elif key in KEYS:
                decided.set_result(KEYS[key])
            if decided.done():
                loop.remove_reader(self._terminal)

        loop.add_reader(self._terminal, on_key)
        try:
            return await decided
        finally:
            loop.remove_reader(self._terminal)
