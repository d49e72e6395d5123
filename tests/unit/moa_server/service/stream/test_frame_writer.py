"""What is written first, and how slow a client may be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.engine.stepper import CodedRows
from moa_server.service.stream import frame_writer
from moa_server.service.stream.frame_writer import QUEUE_BYTES, BoundedWriter, FrameWriter
from moa_server.session.memory_feed import CHUNK_ROWS, START_BYTES, Chunk, MemoryFeed
from moa_shared.errors import InternalError, UnavailableError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import Plane, Verdict
from moa_shared.protocol.protobuf_messages import VerdictReader, rows_from_proto

ROW = row_bytes(Codec.BF16, 4)


def verdict(base: int) -> Verdict:
    """One that continues no other."""
    return Verdict(1, base, 0, ())


class Wire:
    """Where a frame writer writes: a gate that can be shut, and a codec that answers when told to."""

    def __init__(self, write_seconds: float = 10.0) -> None:
        self.written: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.codings: list[tuple[Chunk, asyncio.Future[CodedRows]]] = []
        self.has_time = True
        self._reader = VerdictReader()
        self.frame_writer = FrameWriter(self._write, write_seconds)

    async def _write(self, frame: pb.ServerFrame) -> None:
        await self.gate.wait()
        kind = frame.WhichOneof("frame")
        if kind == "memory":
            self.written.append(f"memory {frame.memory.start}+{frame.memory.count}")
        elif kind == "beat":
            self.written.append(f"beat {frame.beat.stamp}")
        else:
            verdict = self._reader.read_verdict(frame.verdict)
            memory = [rows_from_proto(rows, verdict) for rows in frame.verdict.memory]
            rows = [f" with {each.plane.name} {each.start}+{each.count}" for each in memory]
            self.written.append(f"verdict {verdict.base}{''.join(rows)}")

    def may_code(self) -> bool:
        return self.has_time

    def hash_at(self, length: int) -> int:
        return length

    def code(self, chunk: Chunk) -> asyncio.Future[CodedRows]:
        future: asyncio.Future[CodedRows] = asyncio.get_running_loop().create_future()
        self.codings.append((chunk, future))
        return future

    def finish_coding(self) -> None:
        chunk, future = self.codings[-1]
        future.set_result(CodedRows(chunk, bytes(chunk.nbytes)))

    def follow(self, feed: MemoryFeed) -> None:
        self.frame_writer.follow(feed, self.code, self.may_code, self.hash_at)

    async def settle(self) -> None:
        """Lets the frame writer do all that it can."""
        for _ in range(10):
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.frame_writer.write_frames())
        await self.settle()
        yield
        self.frame_writer.close()
        await task


def feed(rows: int, credit: int = 1 << 20) -> MemoryFeed:
    feed = MemoryFeed({Plane.MEMORY: 4}, Codec.BF16, credit)
    feed.rows_ready(rows)
    return feed


def coded(start: int, count: int, plane: Plane = Plane.MEMORY) -> CodedRows:
    return CodedRows(Chunk(plane, start, count, Codec.BF16, count * ROW), bytes(count * ROW))


async def test_rows_coded_for_another_chunk_are_not_used() -> None:
    wire = Wire()
    async with wire.running():
        wire.follow(feed(3))
        wire.frame_writer.put_rows(CodedRows(Chunk(Plane.MEMORY, 0, 3, Codec.INT4, 9), bytes(9)), with_verdict=False)
        wire.frame_writer.poke()
        await wire.settle()
        assert [chunk for chunk, _ in wire.codings] == [Chunk(Plane.MEMORY, 0, 3, Codec.BF16, 3 * ROW)]


@pytest.mark.parametrize("length", [2, 3])
async def test_void_rows_are_not_written_and_give_their_credit_back(length: int) -> None:
    wire, owed = Wire(), feed(3)
    async with wire.running():
        wire.follow(owed)
        await wire.settle()
        assert owed.in_flight_bytes == 3 * ROW
        wire.frame_writer.void(length)
        owed.crop(length)
        if length == 3:  # all rows are before the cut
            wire.finish_coding()
        await wire.settle()
        assert wire.codings[0][1].cancelled() is (length == 2)
        assert owed.in_flight_bytes == (0 if length == 2 else 3 * ROW)
        assert wire.written == ([] if length == 2 else ["memory 0+3"])


async def test_coding_that_fails_ends_the_stream() -> None:
    wire = Wire()
    wire.follow(feed(3))
    task = asyncio.create_task(wire.frame_writer.write_frames())
    await wire.settle()
    wire.codings[0][1].set_exception(InternalError("lost"))
    with pytest.raises(InternalError, match="lost This is a defect of moa: please report it with"):
        await task


async def test_a_client_that_takes_nothing_in_is_given_up() -> None:
    wire = Wire(write_seconds=0.01)
    wire.gate.clear()
    wire.frame_writer.put_verdict(verdict(1))
    with pytest.raises(UnavailableError, match="The client has read almost nothing for"):
        await wire.frame_writer.write_frames()


async def test_memory_waits_for_time_unless_it_is_coded_already() -> None:
    wire = Wire()
    wire.has_time = False
    async with wire.running():
        fed = feed(20)
        wire.follow(fed)
        await wire.settle()
        assert wire.codings == []
        wire.frame_writer.put_rows(coded(20 - CHUNK_ROWS, CHUNK_ROWS), with_verdict=False)
        await wire.settle()
        assert wire.written == [f"memory {20 - CHUNK_ROWS}+{CHUNK_ROWS}"]
        wire.has_time = True
        wire.frame_writer.poke()
        await wire.settle()
        assert [chunk.start for chunk, _ in wire.codings] == [20 - 2 * CHUNK_ROWS]
        wire.finish_coding()
        await wire.settle()


async def test_verdicts_that_wait_are_one() -> None:
    wire = Wire()
    frames: list[pb.ServerFrame] = []

    async def write(frame: pb.ServerFrame) -> None:
        await wire.gate.wait()
        frames.append(frame)

    wire.frame_writer = FrameWriter(write, 10.0)
    async with wire.running():
        wire.gate.clear()
        for base in range(1, 1000):
            wire.frame_writer.put_verdict(Verdict(1, base, 0, [base]))
            await asyncio.sleep(0)
        wire.gate.set()
        await wire.settle()
    assert [(frame.verdict.base, len(frame.verdict.tokens)) for frame in frames] == [(1, 1), (0, 998)]


async def test_a_client_that_leaves_too_much_unread_is_given_up() -> None:
    wire = Wire()
    wire.gate.clear()
    task = asyncio.create_task(wire.frame_writer.write_frames())
    same = Verdict(1, 5, 0, [1 << 20] * 20_000)  # again and again
    for _ in range(4 * QUEUE_BYTES // 60_000):
        wire.frame_writer.put_verdict(same)
        await asyncio.sleep(0)
        assert 60_000 * len(wire.frame_writer._urgent) <= QUEUE_BYTES
    wire.gate.set()
    with pytest.raises(UnavailableError, match="Keep reading, or open a new stream to resume"):
        await task


def both_planes(rows: int) -> MemoryFeed:
    feed = MemoryFeed({Plane.MEMORY: 4, Plane.REUSED_STATE: 4}, Codec.BF16, 1 << 20)
    feed.rows_ready(rows)
    return feed


async def test_rows_that_wait_for_a_verdict_do_not_go_alone() -> None:
    wire = Wire()
    wire.has_time = False
    async with wire.running():
        wire.follow(both_planes(4))
        wire.frame_writer.put_rows(coded(0, 4, Plane.REUSED_STATE), with_verdict=False)
        wire.frame_writer.put_rows(coded(0, 4), with_verdict=True)
        await wire.settle()
        assert wire.written == ["memory 0+4"]
        wire.frame_writer.put_verdict(Verdict(1, 4, 0, [9]))
        await wire.settle()
        assert wire.written == ["memory 0+4", "verdict 4 with MEMORY 0+4"]


async def test_a_verdict_does_not_wait_for_many_rows() -> None:
    many = START_BYTES // ROW + 1
    wire = Wire()
    async with wire.running():
        wire.follow(feed(many, credit=1 << 20))
        wire.frame_writer.put_rows(coded(0, many), with_verdict=True)
        wire.frame_writer.put_verdict(verdict(many))
        await wire.settle()
        assert wire.written == [f"verdict {many}", f"memory 0+{many}"]


async def test_rows_of_a_later_verdict_do_not_go_with_an_earlier_one() -> None:
    wire = Wire()
    async with wire.running():
        wire.follow(both_planes(5))
        wire.gate.clear()
        wire.frame_writer.put_verdict(Verdict(1, 4, 0, (), Finish.STOP))
        wire.frame_writer.put_rows(coded(4, 1, Plane.REUSED_STATE), with_verdict=False)
        wire.frame_writer.put_verdict(Verdict(2, 5, 0, [9]))
        wire.gate.set()
        await wire.settle()
        assert wire.written[:2] == ["verdict 4", "verdict 5 with REUSED_STATE 4+1"]


async def test_void_rows_that_are_coded_give_their_credit_back() -> None:
    wire, owed = Wire(), both_planes(5)
    wire.has_time = False
    wire.follow(owed)
    wire.frame_writer.put_rows(coded(0, 3), with_verdict=True)
    wire.frame_writer.put_rows(coded(3, 2), with_verdict=True)
    wire.frame_writer.void(4)
    owed.crop(4)
    assert owed.in_flight_bytes == 3 * ROW
    async with wire.running():
        wire.frame_writer.put_verdict(Verdict(1, 5, 0, [9]))
        await wire.settle()
    assert wire.written == ["verdict 5 with MEMORY 0+3"]


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


@pytest.mark.parametrize("ms", [0.0, 3.6e6])
async def test_verdicts_that_may_linger_leave_together(ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writer, "LINGER_MS", ms)
    wire = Wire()
    async with wire.running():
        for base in (1, 2):
            wire.frame_writer.put_verdict(Verdict(1, base, 9, (5,)), lingers=True)
        await wire.settle()
        assert wire.written == ([] if ms else ["verdict 1"])
        wire.frame_writer.put_verdict(Verdict(1, 3, 9, (5,)))
        await wire.settle()
        assert wire.written == (["verdict 1"] if ms else ["verdict 1", "verdict 3"])
