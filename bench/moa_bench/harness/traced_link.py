"""A client's link that notes when each frame went or came: for pictures, and for the time to the first draft.

State: the list of notes. Frames pass unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from moa.v1 import moa_pb2 as pb
from moa_client.link.channel import Link
from moa_client.link.stream import Stream, Traffic


@dataclass(frozen=True, slots=True)
class Note:
    """A frame at the client.

    Args:
        at_s: on the clock of `time.perf_counter`.
        up: whether it went to the server.
        kind: the frame's name: "draft", "verdict", "memory", ...
        tokens: nodes of a draft, tokens of a verdict, rows of memory.
        step_ms: of the forward that gave a verdict; `verified`: draft nodes in it.
    """

    at_s: float
    up: bool
    kind: str
    nbytes: int
    tokens: int = 0
    accepted: int = 0
    step_ms: float = 0.0
    verified: int = 0


class TracedLink(Link):
    """A link that notes its frames in `notes`."""

    def __init__(self, address: str, connect_seconds: float, silence_seconds: float) -> None:
        super().__init__(address, connect_seconds, silence_seconds)
        self.notes: list[Note] = []

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: Traffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        stream, opened = await super().open(message, seconds, traffic, session)
        return cast("Stream", _TracedStream(stream, self.notes.append)), opened


class _TracedStream:
    def __init__(self, stream: Stream, note: Callable[[Note], None]) -> None:
        self._stream = stream
        self._note = note

    async def send(self, **frame: Any) -> None:
        message = pb.ClientFrame(**frame)
        self._note(Note(time.perf_counter(), True, *_describe(message), tokens=len(message.draft.tokens)))
        await self._stream.send(**frame)

    async def receive(self) -> pb.ServerFrame:
        message = await self._stream.receive()
        verdict = message.verdict
        self._note(
            Note(
                time.perf_counter(),
                False,
                *_describe(message),
                tokens=message.memory.count or len(verdict.tokens),
                accepted=verdict.accepted,
                step_ms=verdict.step_hundredths / 100,
                verified=verdict.drafted,
            )
        )
        return message

    async def say_goodbye(self) -> None:
        await self._stream.say_goodbye()

    def cancel(self) -> None:
        self._stream.cancel()


def _describe(message: pb.ClientFrame | pb.ServerFrame) -> tuple[str, int]:
    return str(message.WhichOneof("frame")), message.ByteSize()
