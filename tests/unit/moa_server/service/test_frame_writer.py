"""What is written first, and how slow a client may be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.engine.stepper import CodedRows
from moa_server.service import frame_writer
from moa_server.service.frame_writer import QUEUE_BYTES, BoundedWriter, FrameWriter, RowSource, merge_verdicts
from moa_server.session.memory_feed import CHUNK_ROWS, START_BYTES, Chunk, MemoryFeed
from moa_shared.errors import InternalError, MoaError, UnavailableError
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import Finish, Plane, Verdict
from moa_shared.protocol.protobuf_messages import VerdictFrames, rows_from_proto

ROW = row_bytes(Codec.BF16, 4)


class Wire:
    """Where a frame writer writes: a gate that can be shut, and a codec that answers when told to."""

    def __init__(self, has_time: bool = True) -> None:
        self.frames: list[pb.ServerFrame] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.codings: list[tuple[Chunk, asyncio.Future[CodedRows]]] = []
        self.has_time = has_time
        self.writer = FrameWriter(self._write, 3600.0)

    async def _write(self, frame: pb.ServerFrame) -> None:
        await self.gate.wait()
        self.frames.append(frame)

    async def written(self) -> list[str]:
        """What has been written, once the frame writer has done all that it can."""
        for _ in range(10):
            await asyncio.sleep(0)
        reader, lines = VerdictFrames(), []
        for frame in self.frames:
            if frame.HasField("memory"):
                lines.append(f"memory {frame.memory.start}+{frame.memory.count}")
            else:
                verdict = reader.read_verdict(frame.verdict)
                memory = [rows_from_proto(rows, verdict) for rows in frame.verdict.memory]
                rows = [f" with {each.plane.name} {each.start}+{each.count}" for each in memory]
                lines.append(f"verdict {verdict.base}{''.join(rows)}")
        return lines

    def code(self, chunk: Chunk) -> asyncio.Future[CodedRows]:
        future: asyncio.Future[CodedRows] = asyncio.get_running_loop().create_future()
        self.codings.append((chunk, future))
        return future

    def finish_coding(self) -> None:
        chunk, future = self.codings[-1]
        future.set_result(CodedRows(chunk, bytes(chunk.nbytes)))

    def follow(self, feed: MemoryFeed) -> None:
        self.writer.follow(RowSource(feed, self.code, lambda: self.has_time, lambda length: length))

    def put(self, start: int, count: int, plane: Plane = Plane.MEMORY, *, with_verdict: bool = False) -> None:
        """Puts rows that are coded already."""
        chunk = Chunk(plane, start, count, Codec.BF16, count * ROW)
        self.writer.put_rows(CodedRows(chunk, bytes(chunk.nbytes)), with_verdict=with_verdict)


@asynccontextmanager
async def running(
    owed: MemoryFeed | None = None, *, has_time: bool = True, ends: type[MoaError] | None = None
) -> AsyncIterator[Wire]:
    """`ends`: with what; None: well."""
    wire = Wire(has_time)
    if owed is not None:
        wire.follow(owed)
    task = asyncio.create_task(wire.writer.write_frames())
    await wire.written()
    yield wire
    wire.writer.close()
    with pytest.raises(ends) if ends is not None else nullcontext():
        await task


def feed(rows: int, *planes: Plane) -> MemoryFeed:
    feed = MemoryFeed(dict.fromkeys((Plane.MEMORY, *planes), 4), Codec.BF16, 1 << 20)
    feed.rows_ready(rows)
    return feed


async def test_rows_coded_for_another_chunk_are_not_used() -> None:
    async with running() as wire:
        wire.follow(feed(3))
        wire.writer.put_rows(CodedRows(Chunk(Plane.MEMORY, 0, 3, Codec.INT4, 9), bytes(9)), with_verdict=False)
        await wire.written()
        assert [chunk for chunk, _ in wire.codings] == [Chunk(Plane.MEMORY, 0, 3, Codec.BF16, 3 * ROW)]


@pytest.mark.parametrize("length", [2, 3])
async def test_void_rows_are_not_written_and_give_their_credit_back(length: int) -> None:
    owed, is_void = feed(3), length == 2
    async with running(owed) as wire:
        assert owed.in_flight_bytes == 3 * ROW
        wire.writer.void(length)
        owed.crop(length)
        if not is_void:
            wire.finish_coding()
        assert await wire.written() == ([] if is_void else ["memory 0+3"])
        assert wire.codings[0][1].cancelled() is is_void
        assert owed.in_flight_bytes == (0 if is_void else 3 * ROW)


async def test_void_rows_that_are_coded_give_their_credit_back() -> None:
    owed = feed(5, Plane.REUSED_STATE)
    async with running(owed, has_time=False) as wire:
        wire.put(0, 3, with_verdict=True)
        wire.put(3, 2, with_verdict=True)
        wire.writer.void(4)
        owed.crop(4)
        assert owed.in_flight_bytes == 3 * ROW
        wire.writer.put_verdict(Verdict(1, 5, 0, [9]))
        assert await wire.written() == ["verdict 5 with MEMORY 0+3"]


async def test_coding_that_fails_ends_the_stream() -> None:
    async with running(feed(3), ends=InternalError) as wire:
        wire.codings[0][1].set_exception(InternalError("lost"))
        await wire.written()


async def test_memory_waits_for_time_unless_it_is_coded_already() -> None:
    async with running(feed(20), has_time=False) as wire:
        assert wire.codings == []
        wire.put(20 - CHUNK_ROWS, CHUNK_ROWS)
        assert await wire.written() == [f"memory {20 - CHUNK_ROWS}+{CHUNK_ROWS}"]
        wire.has_time = True
        wire.writer.poke()
        await wire.written()
        assert [chunk.start for chunk, _ in wire.codings] == [20 - 2 * CHUNK_ROWS]
        wire.finish_coding()
        await wire.written()


async def test_verdicts_that_wait_are_one() -> None:
    async with running() as wire:
        wire.gate.clear()
        for base in range(1, 1000):
            wire.writer.put_verdict(Verdict(1, base, 0, [base]))
            await asyncio.sleep(0)
        wire.gate.set()
    assert [(frame.verdict.base, len(frame.verdict.tokens)) for frame in wire.frames] == [(1, 1), (0, 998)]


async def test_a_client_that_leaves_too_much_unread_is_given_up() -> None:
    same = Verdict(1, 5, 0, [1 << 20] * 20_000)  # again and again
    async with running(ends=UnavailableError) as wire:
        wire.gate.clear()
        for _ in range(4 * QUEUE_BYTES // 60_000):
            wire.writer.put_verdict(same)
            await asyncio.sleep(0)
            assert 60_000 * len(wire.writer._urgent) <= QUEUE_BYTES
        wire.gate.set()


async def test_rows_that_wait_for_a_verdict_do_not_go_alone() -> None:
    async with running(has_time=False) as wire:
        wire.follow(feed(4, Plane.REUSED_STATE))
        wire.put(0, 4, Plane.REUSED_STATE)
        wire.put(0, 4, with_verdict=True)
        assert await wire.written() == ["memory 0+4"]
        wire.writer.put_verdict(Verdict(1, 4, 0, [9]))
        assert await wire.written() == ["memory 0+4", "verdict 4 with MEMORY 0+4"]


async def test_a_verdict_does_not_wait_for_many_rows() -> None:
    many = START_BYTES // ROW + 1
    async with running() as wire:
        wire.follow(feed(many))
        wire.put(0, many, with_verdict=True)
        wire.writer.put_verdict(Verdict(1, many, 0, ()))
        assert await wire.written() == [f"verdict {many}", f"memory 0+{many}"]


async def test_rows_of_a_later_verdict_do_not_go_with_an_earlier_one() -> None:
    async with running() as wire:
        wire.follow(feed(5, Plane.REUSED_STATE))
        wire.writer.put_verdict(Verdict(1, 4, 0, (), Finish.STOP))
        wire.put(4, 1, Plane.REUSED_STATE)
        wire.writer.put_verdict(Verdict(2, 5, 0, [9]))
        assert (await wire.written())[:2] == ["verdict 4", "verdict 5 with REUSED_STATE 4+1"]


async def test_a_client_that_takes_next_to_nothing_in_is_given_up() -> None:
    now = 0.0

    async def write(frame: pb.ServerFrame) -> None:
        nonlocal now
        now += 29.0
        await asyncio.sleep(0)

    writer = BoundedWriter(write, 30.0, lambda: now)
    beat = pb.ServerFrame(beat=pb.Beat(stamp=1))
    await writer.write(beat)
    await writer.write(beat)
    with pytest.raises(UnavailableError, match="The client has read almost nothing for"):
        await writer.write(beat)


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
async def test_verdicts_that_may_linger_leave_together(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writer, "LINGER_MS", 1e3 * seconds)
    async with running() as wire:
        for base in (1, 2):
            wire.writer.put_verdict(Verdict(1, base, 9, (5,)), lingers=True)
        assert await wire.written() == ([] if seconds else ["verdict 1"])
        wire.writer.put_verdict(Verdict(1, 3, 9, (5,)))
        assert await wire.written() == (["verdict 1"] if seconds else ["verdict 1", "verdict 3"])


def verdict_of(base: int, *tokens: int, ask: int = 1, finish: Finish = Finish.UNFINISHED, **fields: Any) -> Verdict:
    return Verdict(ask, base, base, list(tokens), finish, **fields)


def test_verdicts_that_continue_each_other_are_one() -> None:
    verdict = verdict_of(3, 7, 8, accepted=1, drafted=4, stale=2, step_ms=5.0, server_drafted=2, server_accepted=1)
    later = verdict_of(5, 9, drafted=3, stale=1, step_ms=6.0, finish=Finish.STOP, server_drafted=3, least_chance=0.5)
    counts = {"accepted": 1, "drafted": 7, "stale": 3, "server_drafted": 5, "server_accepted": 1}
    both = verdict_of(3, 7, 8, 9, finish=Finish.STOP, step_ms=6.0, least_chance=0.5, **counts)
    assert merge_verdicts(verdict, later) == both
    assert merge_verdicts(verdict, verdict) is None  # repeats
    assert merge_verdicts(verdict, verdict_of(6, 9)) is None  # leaves a gap
    assert merge_verdicts(both, verdict_of(6, 9)) is None  # after the answer's end
    assert merge_verdicts(verdict, verdict_of(5, 9, ask=2)) is None  # of another question
