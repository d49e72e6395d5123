"""Frames of the Converse stream to and from bytes; the only place in the server that reads what clients wrote."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ContextLengthError, ProtocolError, TreeError
from moa_shared.protocol.messages import Memory, Verdict

from moa_server.engine.stepper import CodedRows
from moa_server.session.memory_feed import START_BYTES, Chunk, MemoryFeed

Parsed = TypeVar("Parsed", bound=Message)


def parse_frame(kind: type[Parsed], data: bytes, most_bytes: int) -> Parsed:
    """A message from the wire."""
    if len(data) > most_bytes:
        raise ProtocolError(
            f"a message of at most {most_bytes} bytes", f"{len(data)}", hint="Send less at once (Limits.frame_bytes)."
        )
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ProtocolError(f"a {kind.DESCRIPTOR.name}", f"{len(data)} bytes that do not parse") from None


def check_order(kind: str | None, *, is_first: bool) -> None:
    if kind is None:
        raise ProtocolError("a frame that this version knows", "an empty or unknown one")
    if is_first is not (kind == "open"):
        expected = ("Open as the first frame", kind) if is_first else ("one Open a stream", "another Open")
        raise ProtocolError(*expected)


def check_lengths(frame: pb.ClientFrame, most_tokens: int) -> int:
    """Checks how many tokens a frame holds, before anything looks at them; returns the number of its draft nodes."""
    ask = frame.open.ask if frame.HasField("open") else frame.ask
    draft = frame.draft if frame.HasField("draft") else ask.provisional
    tokens = max(len(frame.open.tokens), len(ask.tokens))
    if tokens > most_tokens:
        raise ContextLengthError(f"The frame has {tokens} tokens, the context holds {most_tokens}.")
    nodes = max(len(draft.tokens), len(draft.parents))
    if nodes > most_tokens:
        raise TreeError(
            f"The draft has {nodes} nodes, more than the {most_tokens} allowed.", hint="Send smaller drafts."
        )
    return len(draft.tokens)


def merge_verdicts(earlier: Verdict, later: Verdict) -> Verdict | None:
    """A verdict and the one that continues it, as one; None if it continues another.

    It has the costs and the price of the newest step and counts what all steps verified.
    """
    continues = earlier.ask == later.ask and later.base == earlier.base + len(earlier.tokens)
    if earlier.finish or not continues:
        return None
    return replace(
        later,
        base=earlier.base,
        prefix_hash=earlier.prefix_hash,
        tokens=[*earlier.tokens, *later.tokens],
        accepted=earlier.accepted + later.accepted,
        drafted=earlier.drafted + later.drafted,
        stale=earlier.stale + later.stale,
        server_drafted=earlier.server_drafted + later.server_drafted,
        server_accepted=earlier.server_accepted + later.server_accepted,
        chances=(*earlier.chances, *later.chances) if bool(earlier.chances) is bool(later.chances) else (),
    )


class MemoryQueue:
    """The memory that goes to a client, as it is coded.

    Args:
        code: codes a chunk.
        may_code: whether there is time to encode rows now; if not, the stream is told when there is.
        hash_at: hash of the conversation's first tokens, its low half; names the state that memory belongs to.
    """

    def __init__(
        self,
        feed: MemoryFeed,
        code: Callable[[Chunk], asyncio.Future[CodedRows]],
        may_code: Callable[[], bool],
        hash_at: Callable[[int], int],
        ready: asyncio.Event,
    ) -> None:
        self._feed = feed
        self._code = code
        self._may_code = may_code
        self._hash_at = hash_at
        self._ready = ready
        self._coded: list[CodedRows] = []  # a verdict takes them along
        self._held: list[CodedRows] = []  # which wait for a verdict to take them along
        self._coding: tuple[Chunk, asyncio.Future[CodedRows]] | None = None

    def put(self, newest: CodedRows, *, with_verdict: bool) -> None:
        """Queues rows that are coded already, if the feed still owes them and the credit allows.

        `with_verdict`: they wait for the next verdict, which is sure to come, rather than go in a frame of their own.
        """
        if self._feed.claim(newest.chunk):
            (self._held if with_verdict else self._coded).append(newest)
        if not with_verdict:
            self._ready.set()

    def void(self, length: int) -> None:
        """Takes back rows from position `length` on, which are void."""
        for rows in self._take(lambda stop: stop > length):
            self._feed.take_back(rows.chunk.nbytes)
        if self._coding is not None:
            chunk, future = self._coding
            if chunk.start + chunk.count > length:
                future.cancel()
                self._feed.take_back(chunk.nbytes)
                self._coding = None

    def close(self) -> None:
        if self._coding is not None:
            self._coding[1].cancel()

    def take_with_verdict(self, end: int) -> list[Memory]:
        """The coded rows that leave with a verdict whose last token ends there; none if they are too many.

        It is read when all of its frame has come, and a connection that was at rest sends little more than START_BYTES
        before anything is acknowledged.
        """
        rows = self._take(lambda stop: stop <= end)
        if sum(each.chunk.nbytes for each in rows) > START_BYTES:
            self._coded[:0] = rows
            return []
        return [self._message(each) for each in rows]

    def take(self) -> Memory | None:
        """The next rows for a frame of their own; None: there are none, or they are being coded."""
        if self._coded:
            return self._message(self._coded.pop(0))
        if self._coding is None:
            if not self._feed.may_owe:
                return None
            chunk = self._feed.take(encodes=self._may_code())
            if chunk is None:
                return None
            self._coding = chunk, self._code(chunk)
            self._coding[1].add_done_callback(self._on_coded)
        future = self._coding[1]
        if not future.done():
            return None
        self._coding = None
        return self._message(future.result())

    def _take(self, belongs: Callable[[int], bool]) -> list[CodedRows]:
        """Takes the coded rows out whose end is such a position."""
        taken: list[CodedRows] = []
        for queue in (self._coded, self._held):
            if queue:
                taken += [rows for rows in queue if belongs(rows.chunk.start + rows.chunk.count)]
                queue[:] = [rows for rows in queue if not belongs(rows.chunk.start + rows.chunk.count)]
        return taken

    def _on_coded(self, future: asyncio.Future[CodedRows]) -> None:
        if not future.cancelled():
            future.exception()  # seen, even if the stream ends before it is asked for the rows
        self._ready.set()

    def _message(self, rows: CodedRows) -> Memory:
        chunk = rows.chunk
        prefix_hash = self._hash_at(chunk.start + chunk.count)
        return Memory(chunk.start, chunk.count, chunk.codec, rows.payload, chunk.plane, prefix_hash)
