"""What crosses the link, for those who watch it: each message as this device saw it.

State: those who watch, each with the messages not read yet. Without one, nothing is made. A reader that lags loses the
oldest: this is a picture, not a record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

from moa.v1 import moa_pb2 as pb

from moa_client.link.stream import FRAME_OVERHEAD_BYTES

Way = Literal["up", "down"]
Frame = pb.ClientFrame | pb.ServerFrame
MOST_UNREAD = 2048  # messages: ten seconds of a busy link
KINDS = ("draft", "ask", "beat", "ack", "verdict", "memory", "opened")


@dataclass(frozen=True, slots=True)
class Crossing:
    """A message that has crossed the link.

    Args:
        t: when it was sent (up) or had arrived (down), in milliseconds on the clock of all such messages.
        tokens: drafted, or committed by a verdict; `accepted`: of the latter, how many this device had drafted.
        server_accepted: how many only the server had drafted.
        conversation: its identifier; empty: it is not kept.
    """

    t: float
    way: Way
    kind: str
    bytes: int
    tokens: int = 0
    accepted: int = 0
    conversation: str = ""
    server_accepted: int = 0


class FrameTap:
    """Tells those who watch what crosses the link."""

    def __init__(self) -> None:
        self._watchers: list[tuple[deque[Crossing], asyncio.Event]] = []

    def observer(self, conversation: str) -> Callable[[Way, Frame], None]:
        def observe(way: Way, frame: Frame) -> None:
            if not self._watchers:
                return
            crossing = _crossing(way, frame, conversation)
            for unread, arrived in self._watchers:
                unread.append(crossing)
                arrived.set()

        return observe

    async def watch(self) -> AsyncIterator[Crossing]:
        watcher = deque[Crossing](maxlen=MOST_UNREAD), asyncio.Event()
        unread, arrived = watcher
        self._watchers.append(watcher)
        try:
            while True:
                while unread:
                    yield unread.popleft()
                arrived.clear()
                await arrived.wait()
        finally:
            self._watchers.remove(watcher)


def _crossing(way: Way, frame: Frame, conversation: str) -> Crossing:
    kind = frame.WhichOneof("frame") or "other"
    tokens = accepted = server_accepted = 0
    if isinstance(frame, pb.ClientFrame) and kind == "draft":
        tokens = len(frame.draft.tokens)
    elif isinstance(frame, pb.ServerFrame) and kind == "verdict":
        tokens = len(frame.verdict.tokens)
        server_accepted = frame.verdict.server_accepted
        accepted = frame.verdict.accepted - server_accepted
    size = frame.ByteSize() + FRAME_OVERHEAD_BYTES
    known = kind if kind in KINDS else "other"
    return Crossing(1e3 * time.monotonic(), way, known, size, tokens, accepted, conversation, server_accepted)
