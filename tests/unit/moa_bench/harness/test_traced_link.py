"""Frames pass a traced stream unchanged, and are noted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from moa.v1 import moa_pb2 as pb
from moa_bench.harness.traced_link import Note, _TracedStream
from moa_client.link.stream import Stream


class FakeStream:
    def __init__(self, frames: list[pb.ServerFrame]) -> None:
        self.frames = frames
        self.sent: list[dict[str, Any]] = []
        self.ended = ""

    async def send(self, **frame: Any) -> None:
        self.sent.append(frame)

    async def receive(self) -> pb.ServerFrame:
        return self.frames.pop(0)

    async def say_goodbye(self) -> None:
        self.ended = "goodbye"

    def cancel(self) -> None:
        self.ended = "cancelled"


def test_frames_pass_and_are_noted() -> None:
    verdict = pb.ServerFrame(verdict=pb.Verdict(base=3, tokens=[1, 2], accepted=1, drafted=4, step_hundredths=5000))
    memory = pb.ServerFrame(memory=pb.Memory(start=0, count=7, payload=b"x" * 90))
    inner = FakeStream([verdict, memory])
    notes: list[Note] = []
    stream = _TracedStream(cast("Stream", inner), notes.append)

    async def engine() -> list[pb.ServerFrame]:
        await stream.send(draft=pb.Draft(tokens=[5, 6, 7]))
        came = [await stream.receive(), await stream.receive()]
        await stream.say_goodbye()
        return came

    assert asyncio.run(engine()) == [verdict, memory]
    assert inner.sent == [{"draft": pb.Draft(tokens=[5, 6, 7])}]
    assert inner.ended == "goodbye"
    stream.cancel()
    assert inner.ended == "cancelled"
    assert [(note.up, note.kind, note.tokens) for note in notes] == [
        (True, "draft", 3), (False, "verdict", 2), (False, "memory", 7),
    ]  # fmt: skip
    assert (notes[1].accepted, notes[1].verified, notes[1].step_ms) == (1, 4, 50.0)
    assert notes[2].nbytes == memory.ByteSize()
    assert [note.at_s for note in notes] == sorted(note.at_s for note in notes)
