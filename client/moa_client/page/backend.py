"""What the page needs from the program that serves it: conversations, the state of the link, and what crosses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from moa_client.host.frame_tap import Crossing
from moa_client.surface.messages import Fields
from moa_client.surface.open_conversation import OpenConversation

ExportForm = Literal["markdown", "json"]
EXPORT_TYPES: dict[ExportForm, tuple[str, str]] = {  # the type of its content, and how its file's name ends
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "json": ("application/json", "json"),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation in the list.

    Args:
        updated: in seconds since 1970.
        unverified: answers that ended without the server, which has not decided them yet.
    """

    id: str
    title: str
    updated: float
    model: str
    answers: int
    unverified: int


class PageBackend(Protocol):
    """What the page is shown, and what it may ask for. Methods raise `MoaError` where they are refused."""

    # Opens a conversation that is kept, or begins one; for one answer or more.
    async def open(self, identifier: str | None, system: str | None, single: bool) -> OpenConversation: ...
    # The device and its link, apart from any conversation. Returns: version, phase, target, server, state, reason,
    # rtt_ms, drafter, alone, level, exact, conversations, since, and `wants_online`: the user's wish for all
    # conversations.
    def status(self) -> Fields: ...
    # Those that have the words; all without any. The newest first.
    async def conversations(self, search: str) -> Sequence[Kept]: ...
    async def delete(self, identifier: str) -> None: ...

    async def export(self, identifier: str, form: ExportForm) -> str: ...

    # The user's wish for all conversations: to continue without the server, or with it again.
    def set_offline(self, is_offline: bool) -> None: ...
    # What crosses the link from now on; leaves the oldest out for a reader that lags.
    def timeline(self) -> AsyncIterator[Crossing]: ...
