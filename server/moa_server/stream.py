"""One Converse stream: a state machine over client frames, and the session that it is attached to.

State: AWAITING_OPEN, then OPEN until the stream ends. Invariants: every frame is handled without waiting, so a
session's state changes only between frames and steps; a stream that ends without Bye leaves its session detached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum, auto

import structlog
from moa.v1 import moa_pb2 as pb
from moa_shared.answer import Finish
from moa_shared.codec import Codec
from moa_shared.errors import MismatchError, MoaError, OverloadedError, ProtocolError, UnavailableError
from moa_shared.wire import PROTOCOL_VERSION, check_identity, check_protocol

from moa_server.allowance import Allowance
from moa_server.feed import Chunk, MemoryFeed, Plane
from moa_server.forward_cost import NODE_SHARE
from moa_server.frames import check_lengths, nodes_of, parse, verdict_frame
from moa_server.host import Host
from moa_server.memory_budget import MemoryBudget
from moa_server.node_choice import NodeChoice
from moa_server.outlet import Outlet
from moa_server.rows import RowStore
from moa_server.session import Phase
from moa_server.slot import Slot, Verdict
from moa_server.stepper import CodedRows, MemorySource

log = structlog.get_logger()


class StreamState(Enum):
    AWAITING_OPEN = auto()
    OPEN = auto()
    ENDED = auto()


class ConverseStream:
    """The server's end of a stream.

    Args:
        host: what is served.
        write: hands one frame to gRPC.
    """

    def __init__(self, host: Host, write: Callable[[pb.ServerFrame], Awaitable[None]]) -> None:
        self.state = StreamState.AWAITING_OPEN
        self._host = host
        self._slot: Slot | None = None
        self._codecs: tuple[Codec, ...] = ()
        self._outlet = Outlet(write, self._code, self._hash_at, self._may_code, host.settings.write_seconds)
        self._reader: asyncio.Task[None] | None = None
        self._allowance = Allowance(host.clock)

    async def run(self, frames: AsyncIterator[bytes]) -> None:
        """Serves the stream until it ends.

        Raises:
            MoaError: why it was ended; the session is freed if the client was at fault.
        """
        refusal: MoaError | None = None
        self._host.calls.add(self)
        try:
            async with asyncio.TaskGroup() as group:
                self._reader = group.create_task(self._read(frames))
                group.create_task(self._write())
        except* MoaError as errors:
            refusal = _first(errors)
            if not isinstance(refusal, UnavailableError):
                self._free()
        finally:
            self._host.calls.discard(self)
            self._leave()
        if refusal is not None:
            raise refusal

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        """Takes frames in. Refusals go through the outlet: a call cannot end while one of its writes is under way."""
        try:
            await self._take_in(frames)
        except MoaError as refusal:
            self._outlet.fail(refusal)
        else:
            self._outlet.close()

    async def _take_in(self, frames: AsyncIterator[bytes]) -> None:
        try:
            with self._host.opening(self):
                async with asyncio.timeout(self._host.settings.open_seconds):
                    first = await anext(frames, None)
        except TimeoutError:
            raise ProtocolError(f"an Open within {self._host.settings.open_seconds:g} s", "nothing") from None
        if first is not None:
            self._on_frame(first)
            async for data in frames:
                self._on_frame(data)
                if self.state is StreamState.ENDED:
                    break
                if pause_seconds := self._allowance.pause_seconds:
                    await asyncio.sleep(pause_seconds)

    async def _write(self) -> None:
        await self._outlet.run()
        if self._reader is not None:
            self._reader.cancel()

    # ------------------------------------------------------------ frames

    def _on_frame(self, data: bytes) -> None:
        if self.state is StreamState.ENDED:
            return  # crossed with our goodbye
        frame = parse(pb.ClientFrame, data, self._host.settings.frame_bytes)
        kind = frame.WhichOneof("frame")
        if kind is None:
            raise ProtocolError("a frame that this version knows", "an empty or unknown one")
        if (kind == "open") is not (self.state is StreamState.AWAITING_OPEN):
            expected = "Open as the first frame" if self.state is StreamState.AWAITING_OPEN else "one Open a stream"
            raise ProtocolError(expected, kind if kind != "open" else "another Open")
        check_lengths(frame, self._host.most_tokens)
        self._allowance.charge(len(data), nodes_of(frame))
        body = getattr(frame, kind)
        if kind == "open":
            self._on_open(body)
        else:
            getattr(self, f"_on_{kind}")(self._attached(), body)

    def _on_open(self, message: pb.Open) -> None:
        host = self._host
        host.check_open()
        check_protocol(PROTOCOL_VERSION, message.protocol_version)
        check_identity(host.served.identity, message.identity, host.served.drafters)
        codec = self._choose_codec(message.codecs)
        found = host.registry.find(message.resume_token) if message.resume_token else None
        slot = found or host.registry.admit()
        if slot.listener is not None:
            slot.listener.on_taken_over()
        host.registry.attach(slot)
        self._slot = slot
        session = slot.session
        session.run_ahead = message.run_ahead
        share = host.served.row_ms / host.served.step_ms if host.served.step_ms else NODE_SHARE
        slot.choice = NodeChoice(host.settings.draft_nodes, share)
        slot.verifies_all = not host.settings.choose_nodes
        slot.budget = MemoryBudget(
            host.settings.memory_share, host.served.step_ms or None
        )  # this stream's drafter is judged anew
        source = host.engine.stepper.find_source(message.identity.drafter_fingerprint) if codec is not None else None
        widths = host.engine.stepper.widths(source, reused_state=message.reused_state) if source is not None else {}
        self._widen(slot, source, widths)
        cached = session.on_open(message.tokens, asks=message.HasField("ask"))
        if message.memory_from > len(message.tokens):
            raise ProtocolError(f"memory_from up to {len(message.tokens)}", f"{message.memory_from}")
        slot.listener = self
        self.state = StreamState.OPEN
        self._outlet.put(
            pb.ServerFrame(
                opened=pb.Opened(
                    resume_token=slot.token,
                    cached_tokens=cached,
                    codec=pb.Codec.Name(codec or 0),
                    limits=host.limits,
                    drafter_fingerprint=source.fingerprint if source is not None else b"",
                )
            )
        )
        if codec is not None:
            credit = message.credit_bytes or host.settings.credit_bytes
            made_by_forward = host.engine.stepper.made_by_forward
            encoded = [plane for plane in widths if source is not None and not made_by_forward(source, plane)]
            slot.feed = MemoryFeed(widths, codec, credit, message.memory_from, encoded=encoded)
            self._outlet.follow(slot.feed)
        log.info("session resumed" if found else "session opened", **self._facts(), cached=cached)
        if message.HasField("ask"):
            self._on_ask(slot, message.ask)
        elif slot.feed is not None:
            slot.feed.rows_ready(session.cached)

    def _choose_codec(self, offered: Sequence[int]) -> Codec | None:
        known = {int(codec): codec for codec in Codec}
        self._codecs = tuple(known[number] for number in offered if number in known)
        if offered and not self._codecs:
            raise MismatchError("memory codec", ", ".join(codec.name.lower() for codec in Codec), "none of these")
        if not offered or not self._host.engine.stepper.sources:
            return None
        return self._codecs[0]

    def _widen(self, slot: Slot, source: MemorySource | None, widths: dict[Plane, int]) -> None:
        """Keeps rows of the planes that this client wants; what was read without keeping its state is read again."""
        if source is None:
            return
        if slot.holdings.source is not source:  # the client has changed its drafter
            slot.holdings.source, slot.holdings.planes = source, {}
        for plane, width in widths.items():
            if plane not in slot.holdings.planes:
                slot.holdings.planes[plane] = RowStore(width)
                if self._host.engine.stepper.made_by_forward(source, plane):
                    slot.session.forget_cache(0)

    def _on_ask(self, slot: Slot, message: pb.Ask) -> None:
        session = slot.session
        backlog = session.on_ask(
            message.base,
            message.prefix_hash,
            message.tokens,
            self._host.answer_settings(message.sampling),
            message.answer_start,
        )
        if backlog.repeats:
            return
        slot.budget.begin_answer()
        if slot.feed is not None:
            self._outlet.void(message.base)
            slot.feed.crop(message.base)
            slot.feed.rows_ready(session.cached)
            self._outlet.poke()
        if message.HasField("provisional"):
            self._on_draft(slot, message.provisional)
        if backlog.tokens:
            self.on_verdict(Verdict(0, backlog.base, session.hashes.at(backlog.base), backlog.tokens, backlog.finish))
        self._host.engine.wake(slot)

    def _on_draft(self, slot: Slot, message: pb.Draft) -> None:
        slot.session.on_draft(
            epoch=message.epoch,
            base=message.base,
            prefix_hash=message.prefix_hash,
            first_node=message.first_node,
            tokens=message.tokens,
            parents=message.parents,
            committed=message.committed,
        )
        self._host.engine.wake(slot)

    def _on_ack(self, slot: Slot, message: pb.Ack) -> None:
        slot.session.on_ack(message.committed)
        self._host.engine.wake(slot)

    def _on_stop(self, slot: Slot, message: pb.Stop) -> None:
        self._end_answer(slot, Finish.CANCELLED)

    def _on_credit(self, slot: Slot, message: pb.Credit) -> None:
        if slot.feed is not None:
            slot.feed.on_credit(message.bytes)
            self._outlet.poke()

    def _on_set_codec(self, slot: Slot, message: pb.SetCodec) -> None:
        codec = next((codec for codec in self._codecs if codec == int(message.codec)), None)
        if codec is None:
            raise ProtocolError("one of the codecs that Open offered", f"codec {message.codec}")
        if slot.feed is not None:
            slot.feed.codec = codec

    def _on_beat(self, slot: Slot, message: pb.Beat) -> None:
        if not message.reply:
            self._outlet.put_beat(message.stamp)

    def _on_bye(self, slot: Slot, message: pb.Bye) -> None:
        self._free()
        self.state = StreamState.ENDED

    # ------------------------------------------------------------ what the engine and the host say

    def on_verdict(self, verdict: Verdict) -> None:
        self._outlet.put(verdict_frame(verdict))

    def on_rows(self, newest: CodedRows) -> None:
        self._outlet.poke(newest)

    def on_spare_time(self) -> None:
        self._outlet.poke()

    def on_failure(self, error: MoaError) -> None:
        self._slot = None
        self.state = StreamState.ENDED
        self._outlet.fail(error)

    def on_taken_over(self) -> None:
        """The client has come back on another stream."""
        self._slot = None
        self._go_away(b"", "the session goes on in another stream")

    def give_up(self) -> None:
        """Too many streams wait for their Open, and this one has waited longest."""
        self._outlet.fail(OverloadedError("Too many streams were opened without an Open."))

    def drain(self) -> None:
        """The server goes away: ends the answer, and tells the client how to go on."""
        if self._slot is None:
            self._outlet.fail(UnavailableError("The server is shutting down.", hint="Connect to another one."))
            return
        self._end_answer(self._slot, Finish.DRAINING)
        self._go_away(self._slot.token, "the server is shutting down")

    # ------------------------------------------------------------ inside

    def _attached(self) -> Slot:
        if self._slot is None:
            raise ProtocolError("no frame after the session's end", "one")
        return self._slot

    def _code(self, chunk: Chunk) -> asyncio.Future[CodedRows]:
        return self._host.engine.code(self._attached(), chunk)

    def _hash_at(self, length: int) -> int:
        return self._attached().session.hashes.at(length)

    def _may_code(self) -> bool:
        return self._slot is not None and self._host.engine.may_code(self._slot)

    def _end_answer(self, slot: Slot, finish: Finish) -> None:
        session = slot.session
        if session.phase is Phase.ANSWERING:
            session.on_stop()
            held = len(session.tokens)
            self.on_verdict(Verdict(session.pending.epoch, held, session.hashes.at(held), (), finish))

    def _go_away(self, token: bytes, reason: str) -> None:
        self._outlet.put(pb.ServerFrame(go_away=pb.GoAway(resume_token=token, reason=reason)))
        self.state = StreamState.ENDED
        self._outlet.close()

    def _free(self) -> None:
        if self._slot is not None:
            log.info("session closed", **self._facts())
            self._host.registry.close(self._slot)
            self._slot = None

    def _leave(self) -> None:
        if self._slot is not None:
            log.info("session detached", **self._facts())
            self._host.registry.detach(self._slot)
            self._slot = None

    def _facts(self) -> dict[str, object]:
        slot = self._attached()
        return {"session": slot.number, "tokens": len(slot.session.tokens), "steps": slot.steps}


def _first(errors: ExceptionGroup[MoaError]) -> MoaError:
    """The first error of a group; reader and writer may fail together, and one status can be told."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
