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
from moa_shared.errors import (
    AuthenticationError,
    MismatchError,
    MoaError,
    OverloadedError,
    ProtocolError,
    RateLimitError,
    UnavailableError,
)
from moa_shared.protocol.continued_frames import DraftReader
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.handshake_checks import IDLE, PROTOCOL_VERSION, check_identity, check_protocol
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Verdict
from moa_shared.protocol.protobuf_messages import ask_from_proto
from moa_shared.tracing.spans import is_traced

from moa_server.access.caller import Caller
from moa_server.drafting.draft_record import DraftRecord
from moa_server.engine.answer_trace import AnswerTrace
from moa_server.engine.live_session import LiveSession
from moa_server.engine.observer import Bytes, Resume
from moa_server.engine.stepper import CodedRows
from moa_server.memory.budget import MemoryBudget
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.service.allowance import Allowance
from moa_server.service.frame_writer import FrameWriter
from moa_server.service.frames import check_lengths, parse
from moa_server.service.host import Host
from moa_server.session.session import Phase

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
        caller: who opened it.
        allowance: of its connection; None: its own.
    """

    def __init__(
        self,
        host: Host,
        write: Callable[[pb.ServerFrame], Awaitable[None]],
        caller: Caller,
        allowance: Allowance | None = None,
    ) -> None:
        self.state = StreamState.AWAITING_OPEN
        self._host = host
        self.caller = caller
        self._live: LiveSession | None = None
        self._codecs: tuple[Codec, ...] = ()
        self._frame_writer = FrameWriter(
            write, self._code, self._hash_at, self._may_code, host.settings.write_seconds, host.observer
        )
        self._drafts = DraftReader()
        self._reader: asyncio.Task[None] | None = None
        self._busy_at = host.clock()  # when something was last asked or written
        self._allowance = allowance or Allowance(host.clock)

    async def run(self, frames: AsyncIterator[bytes]) -> None:
        """Serves the stream until it ends.

        Raises:
            MoaError: why it ended; the session is freed if the client was at fault.
        """
        refusal: MoaError | None = None
        self._host.enter(self)
        try:
            async with asyncio.TaskGroup() as group:
                self._reader = group.create_task(self._read(frames))
                group.create_task(self._write())
        except* MoaError as errors:
            refusal = _first(errors)
            if not isinstance(refusal, UnavailableError | OverloadedError):
                self._free()
        finally:
            self._host.leave(self)
            self._leave()
        if refusal is not None:
            raise refusal

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        """Reads frames. Refusals go through the frame writer: a call cannot end while one of its writes runs."""
        try:
            await self._take_in(frames)
        except MoaError as refusal:
            self._frame_writer.fail(refusal)
        else:
            self._frame_writer.close()

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
        await self._frame_writer.run()
        if self._reader is not None:
            self._reader.cancel()

    # ------------------------------------------------------------ frames

    def _on_frame(self, data: bytes) -> None:
        if self.state is StreamState.ENDED:
            return  # crossed with our goodbye
        frame = parse(pb.ClientFrame, data, self._host.frame_bytes)
        kind = frame.WhichOneof("frame")
        if kind is None:
            raise ProtocolError("a frame that this version knows", "an empty or unknown one")
        if (kind == "open") is not (self.state is StreamState.AWAITING_OPEN):
            expected = "Open as the first frame" if self.state is StreamState.AWAITING_OPEN else "one Open a stream"
            raise ProtocolError(expected, kind if kind != "open" else "another Open")
        nodes = check_lengths(frame, self._host.most_tokens)
        self._allowance.charge(len(data), nodes, replies=kind == "beat")
        self._host.observer.on_received(Bytes.DRAFTS if kind == "draft" else Bytes.REQUESTS, len(data))
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
        if message.HasField("ask"):
            host.rates.check_tokens(self.caller)  # before the session changes: what it has written is kept
        codec = self._choose_codec(message.codecs)
        found = host.registry.find(message.resume_token, self.caller) if message.resume_token else None
        if message.memory_from > len(message.tokens):
            raise ProtocolError(f"memory_from up to {len(message.tokens)}", f"{message.memory_from}")
        live = found or host.registry.new()
        session = live.session
        ask = self._ask_of(message.ask) if message.HasField("ask") else None
        session.check_open(message.tokens, ask)  # before the session changes, and before it takes another's place
        host.registry.attach(live, self.caller)
        cached = session.on_open(message.tokens, asks=ask is not None)
        was_attached = live.listener is not None
        if live.listener is not None:
            live.listener.on_taken_over()
        live.listener, live.feed = self, None
        self._live = live
        session.run_ahead = message.run_ahead
        live.drafts = DraftRecord()
        live.verifies_all = not host.settings.choose_nodes
        live.budget = MemoryBudget(
            host.settings.memory_share, host.engine.told_cost.step_ms or None
        )  # this stream's drafter is judged from scratch
        stepper = host.engine.stepper
        source = stepper.find_source(message.identity.drafter_fingerprint) if codec is not None else None
        widths = stepper.widths(source, reused_state=message.reused_state) if source is not None else {}
        live.takes_drafts = host.settings.takes_drafts
        drafts_by = host.let_draft(live, source, wanted=message.server_drafts)
        if (kept_by := drafts_by or source) is not None:
            host.engine.keep_rows(live, kept_by, stepper.kept_widths(kept_by, widths, drafts=drafts_by is not None))
        cached = min(cached, session.cached)  # less than before if a plane was not kept
        self.state, self._busy_at = StreamState.OPEN, host.clock()
        self._frame_writer.put(
            pb.ServerFrame(
                opened=pb.Opened(
                    resume_token=live.token,
                    cached_tokens=cached,
                    codec=pb.Codec.Name(codec or 0),
                    limits=host.limits,
                    drafter_fingerprint=source.fingerprint if source is not None else b"",
                    new_execution=self._host.new_execution(message.identity.execution),
                )
            )
        )
        if codec is not None:
            credit = message.credit_bytes or host.settings.credit_bytes
            encoded = [plane for plane in widths if source is not None and not stepper.made_by_forward(source, plane)]
            live.feed = MemoryFeed(widths, codec, credit, message.memory_from, encoded=encoded)
            self._frame_writer.follow(live.feed)
        if message.resume_token:
            host.observer.on_resume(_kind_of(found is not None, was_attached, cached))
        log.info("session resumed" if found else "session opened", **self._facts(), cached=cached)
        if ask is not None:
            self._begin(live, ask)
        elif live.feed is not None:
            live.feed.rows_ready(session.cached)

    def _choose_codec(self, offered: Sequence[int]) -> Codec | None:
        known = {int(codec): codec for codec in Codec}
        self._codecs = tuple(known[number] for number in offered if number in known)
        if offered and not self._codecs:
            raise MismatchError("memory codec", ", ".join(codec.name.lower() for codec in Codec), "none of these")
        if not offered or not self._host.engine.stepper.sources:
            return None
        return self._codecs[0]

    def _ask_of(self, message: pb.Ask) -> Ask:
        ask = ask_from_proto(message)
        self._host.check_settings(ask.settings)
        return ask

    def _on_ask(self, live: LiveSession, message: pb.Ask) -> None:
        self._host.rates.on_request(self.caller)
        self._begin(live, self._ask_of(message))

    def _begin(self, live: LiveSession, ask: Ask) -> None:
        """Begins an answer, or continues one."""
        self._drafts = DraftReader()
        if self._host.draining:
            self._send_away(live)
            return
        self._host.let_in(live, self.caller)
        self._busy_at = self._host.clock()
        session = live.session
        backlog = session.on_ask(ask)
        if backlog.repeats:
            return
        live.usage.on_ask(ask.id, len(session.tokens))
        if is_traced() and session.phase is Phase.ANSWERING:
            live.end_trace("asked again")
            live.trace = AnswerTrace(ask.traceparent, live.number, len(session.tokens), session.cached)
        if session.phase is Phase.ANSWERING:
            self._reserve(live)
        live.budget.begin_answer()
        if live.feed is not None:
            self._frame_writer.void(ask.base)
            live.feed.crop(ask.base)
            live.feed.rows_ready(session.cached)
            self._frame_writer.poke()
        if ask.provisional is not None:
            session.on_draft(ask.provisional)
        if backlog.is_news:
            prefix_hash = session.hashes.short_at(backlog.base)
            self.on_verdict(Verdict(session.ask_id, backlog.base, prefix_hash, backlog.tokens, backlog.finish))
        self._host.engine.wake(live)

    def _reserve(self, live: LiveSession) -> None:
        try:
            self._host.reserve(live)
        except MoaError:
            live.session.on_stop()
            raise

    def _on_draft(self, live: LiveSession, message: pb.Draft) -> None:
        session, draft = live.session, self._drafts.read(message)
        if live.takes_drafts:
            session.on_draft(draft)
        else:
            session.on_ack(min(draft.base, len(session.tokens)))
        self._host.engine.wake(live)

    def _on_ack(self, live: LiveSession, message: pb.Ack) -> None:
        live.session.on_ack(message.committed)
        self._host.engine.wake(live)

    def _on_stop(self, live: LiveSession, message: pb.Stop) -> None:
        if message.ask == live.session.ask_id:
            self._end_answer(live, Finish.CANCELLED)

    def _on_credit(self, live: LiveSession, message: pb.Credit) -> None:
        if live.feed is not None:
            live.feed.on_credit(message.bytes)
            self._frame_writer.poke()

    def _on_set_codec(self, live: LiveSession, message: pb.SetCodec) -> None:
        codec = next((codec for codec in self._codecs if codec == int(message.codec)), None)
        if codec is None:
            raise ProtocolError("one of the codecs that Open offered", f"codec {message.codec}")
        if live.feed is not None:
            live.feed.codec = codec

    def _on_beat(self, live: LiveSession, message: pb.Beat) -> None:
        if not message.reply and not self._host.hangs:  # a client that hears nothing continues without the server
            self._frame_writer.put_beat(message.stamp)

    def _on_bye(self, live: LiveSession, message: pb.Bye) -> None:
        self._free()
        self.state = StreamState.ENDED

    # ------------------------------------------------------------ what the engine and the host say

    def on_verdict(self, verdict: Verdict) -> None:
        self._busy_at = self._host.clock()
        self._frame_writer.put_verdict(verdict)
        if self._host.draining and verdict.finish is not Finish.UNFINISHED and self._live is not None:
            self._send_away(self._live)

    def on_rows(self, newest: CodedRows) -> None:
        live = self._live
        if live is None or live.feed is None:
            return
        # Rows that take time to make are ready when the next forward runs. With rows that are there at once to draft
        # from, they leave with its verdict: a frame costs more than the step that they come later.
        is_late = live.feed.is_encoded(newest.chunk.plane) and len(live.feed.planes) > 1
        self._frame_writer.put_rows(newest, with_verdict=is_late and live.stepping)

    def on_spare_time(self) -> None:
        self._frame_writer.poke()

    def on_failure(self, error: MoaError) -> None:
        self._let_go()
        self.state = StreamState.ENDED
        self._frame_writer.fail(error)

    def on_taken_over(self) -> None:
        """The client has come back on another stream."""
        self._let_go()
        self._go_away(b"", "the session continues in another stream")

    def on_displaced(self) -> None:
        """Another stream needs the place."""
        self._let_go()
        self.state = StreamState.ENDED
        self._frame_writer.fail(OverloadedError("The server needed the place of a stream on which nothing was asked."))

    def on_held(self, refusal: RateLimitError) -> None:
        """The caller's tokens are used up: the client comes back when told, and misses nothing."""
        self._leave()
        self._frame_writer.follow(None)
        self.state = StreamState.ENDED
        self._frame_writer.fail(refusal)

    def give_up(self) -> None:
        """Fails the stream: too many wait for their Open, and this one has waited longest."""
        self._frame_writer.fail(OverloadedError("Too many streams were opened without an Open."))

    def drain(self) -> None:
        """Tells the client how to continue elsewhere, at once or after the running answer: the server is going away."""
        if self._live is None:
            self._frame_writer.fail(self._host.leaving())
            self._host.leave(self)
        elif self._live.session.phase is not Phase.ANSWERING:
            self._send_away(self._live)

    def end_refused(self, refusal: AuthenticationError) -> None:
        """Ends the stream and its session: the caller may not go on."""
        self._free()
        self.state = StreamState.ENDED
        self._frame_writer.fail(refusal)

    def end_idle(self, since: float) -> None:
        """Ends the stream if nothing was asked on it since then: the client comes back with its next question."""
        live = self._live
        if live is not None and live.session.phase is not Phase.ANSWERING and self._busy_at < since:
            self._leave()
            self._go_away(live.token, IDLE)

    def end_answer(self) -> None:
        """Ends the running answer: the grace is over."""
        if self._live is not None:
            self._end_answer(self._live, Finish.DRAINING)

    # ------------------------------------------------------------ inside

    def _let_go(self) -> None:
        """Lets the session continue without this stream; what is still to be written here carries no memory."""
        self._live = None
        self._frame_writer.follow(None)

    def _attached(self) -> LiveSession:
        if self._live is None:
            raise ProtocolError("no frame after the session's end", "one")
        return self._live

    def _code(self, chunk: Chunk) -> asyncio.Future[CodedRows]:
        return self._host.engine.code(self._attached(), chunk)

    def _hash_at(self, length: int) -> int:
        return self._attached().session.hashes.short_at(length)

    def _may_code(self) -> bool:
        return self._live is not None and self._host.engine.may_code(self._live)

    def _end_answer(self, live: LiveSession, finish: Finish) -> None:
        session = live.session
        if session.phase is Phase.ANSWERING:
            session.on_stop()
            if live.meter is not None:
                live.meter.end()
            live.usage.on_written(0, finish)
            live.end_trace(finish.name.lower())
            self._host.observer.on_finish(finish)
            held = len(session.tokens)
            self.on_verdict(Verdict(session.ask_id, held, session.hashes.short_at(held), (), finish))

    def _send_away(self, live: LiveSession) -> None:
        self._go_away(live.token, "the server is shutting down", self._host.fleet.names())
        self._host.leave(self)

    def _go_away(self, token: bytes, reason: str, servers: Sequence[str] = ()) -> None:
        self._frame_writer.put(pb.ServerFrame(go_away=pb.GoAway(resume_token=token, reason=reason, servers=servers)))
        self.state = StreamState.ENDED
        self._frame_writer.close()

    def _free(self) -> None:
        if self._live is not None:
            self._host.registry.close(self._live)
            self._let_go()

    def _leave(self) -> None:
        if self._live is not None:
            log.info("session detached", **self._facts())
            self._host.registry.detach(self._live)
            self._live = None

    def _facts(self) -> dict[str, object]:
        live = self._attached()
        facts: dict[str, object] = {"session": live.number, "tokens": len(live.session.tokens), "steps": live.steps}
        return facts if live.trace is None else {**facts, "trace_id": live.trace.trace_id}


def _kind_of(is_found: bool, was_attached: bool, cached: int) -> Resume:
    if not is_found:
        return Resume.UNKNOWN
    if was_attached:
        return Resume.TAKEN_OVER
    return Resume.CACHED if cached else Resume.READ_AGAIN


def _first(errors: ExceptionGroup[MoaError]) -> MoaError:
    """The first error of a group: reader and writer may fail together, but a call ends with one status."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
