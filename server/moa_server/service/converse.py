"""One Converse stream: a state machine over client frames, and the session that it is attached to.

State: AWAITING_OPEN, then OPEN until the stream ends; after a GoAway it is LEAVING until the client has read that.
Invariants: every frame is handled without waiting, so a session's state changes only between frames and steps; a stream
that ends without Bye leaves its session detached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from google.protobuf.message import DecodeError, Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import (
    AuthenticationError,
    ContextLengthError,
    MoaError,
    OverloadedError,
    ProtocolError,
    RateLimitError,
    TreeError,
    UnavailableError,
)
from moa_shared.protocol.handshake_checks import IDLE
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Finish, Verdict
from moa_shared.protocol.protobuf_messages import DraftFrames, constraint_from_proto, thin_memory_from_proto
from moa_shared.tracing import is_traced

from moa_server.access.limits import Caller
from moa_server.engine.live_session import AnswerTrace, FrameBytes, Listener, LiveSession, Resume
from moa_server.engine.stepper import CodedRows
from moa_server.service.admission import frame_cost, pause_seconds
from moa_server.service.frame_writer import LINGER_MS, FrameWriter, RowSource
from moa_server.service.handshake import open_session
from moa_server.service.host import LAST_WORD_SECONDS, Host, OpenCall
from moa_server.session.session import SessionPhase

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText

log = structlog.get_logger()


# Verdicts after which drafts of an answer are taken not to pay: from then on several tokens may leave in one frame.
UNDRAFTED = 8


Parsed = TypeVar("Parsed", bound=Message)


def parse_frame(kind: type[Parsed], data: bytes, most_bytes: int) -> Parsed:
    """A message from the wire."""
    if len(data) > most_bytes:
        hint = "Send less at once (Limits.frame_bytes)."
        raise ProtocolError(f"a message of at most {most_bytes} bytes", f"{len(data)}", hint=hint)
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
    kind = frame.WhichOneof("frame")
    if kind not in ("open", "ask", "draft"):
        return 0
    ask, draft, tokens = frame.ask, frame.draft, 0
    if kind != "draft":
        ask = frame.open.ask if kind == "open" else frame.ask
        draft, tokens = ask.provisional, max(len(frame.open.tokens), len(ask.tokens))
    if tokens > most_tokens:
        raise ContextLengthError(f"The frame has {tokens} tokens, the context holds {most_tokens}.")
    if (nodes := max(len(draft.tokens), len(draft.parents))) > most_tokens:
        words = f"The draft has {nodes} nodes, more than the {most_tokens} allowed."
        raise TreeError(words, hint="Send smaller drafts.")
    return len(draft.tokens)


class StreamState(Enum):
    AWAITING_OPEN = auto()
    OPEN = auto()
    LEAVING = auto()  # the last word is said; it is the client that ends the stream
    ENDED = auto()


class ConverseStream(Listener, OpenCall):
    """The server's end of a stream."""

    def __init__(self, host: Host, write: Callable[[pb.ServerFrame], Awaitable[None]], caller: Caller) -> None:
        self.state = StreamState.AWAITING_OPEN
        self.caller = caller
        self._host, self._lifecycle = host, host.lifecycle
        self._services = services = host.services
        self._allowance = host.admission.allowance(caller)
        self._live: LiveSession | None = None
        self._codecs: tuple[Codec, ...] = ()
        self._frame_writer = FrameWriter(write, services.settings.write_seconds, services.observer)
        self._drafts = DraftFrames()
        self._undrafted = 0  # newest verdicts without a draft of server or device
        self._reader: asyncio.Task[None] | None = None
        self._busy_at = services.clock()  # when something was last asked or written

    async def run(self, frames: AsyncIterator[bytes]) -> None:
        refusal: MoaError | None = None
        self._lifecycle.enter(self)
        try:
            async with asyncio.TaskGroup() as group:
                self._reader = group.create_task(self._read(frames))
                group.create_task(self._write())
        except* MoaError as errors:
            refusal = next(each for each in errors.exceptions if isinstance(each, MoaError))
            if not isinstance(refusal, UnavailableError | OverloadedError):
                self._free()
        finally:
            self._lifecycle.leave(self)
            self._leave()
        if refusal is not None:
            raise refusal

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        """Reads frames. Refusals go through the frame writer: a call cannot end while one of its writes runs."""
        try:
            with self._lifecycle.opening(self.give_up):
                first = await anext(frames, None)
            if first is not None:
                await self._take_frame(first)
            async for data in frames:
                await self._take_frame(data)
                if self.state is StreamState.ENDED:
                    break
                if seconds := pause_seconds(self._allowance):
                    await asyncio.sleep(seconds)
        except MoaError as refusal:
            self._frame_writer.fail(refusal)
        else:
            self._frame_writer.close()

    async def _write(self) -> None:
        await self._frame_writer.write_frames()
        if self._reader is not None:
            if self.state is StreamState.LEAVING:  # a client whose write fails meanwhile can read no more
                await asyncio.wait((self._reader,), timeout=LAST_WORD_SECONDS)
            self._reader.cancel()

    # ------------------------------------------------------------ frames

    async def _take_frame(self, data: bytes) -> None:
        """Checks a frame, compiles the form that a question in it asks for, and handles it."""
        if self.state in (StreamState.LEAVING, StreamState.ENDED):
            self._allowance.take(frame_cost(len(data), 0))
            return  # crossed with our goodbye
        frame = parse_frame(pb.ClientFrame, data, self._services.frame_bytes)
        kind = frame.WhichOneof("frame")
        check_order(kind, is_first=self.state is StreamState.AWAITING_OPEN)
        nodes = check_lengths(frame, self._services.most_tokens)
        self._allowance.take(frame_cost(len(data), nodes, replies=kind == "beat"))
        self._services.observer.on_received(FrameBytes.DRAFTS if kind == "draft" else FrameBytes.REQUESTS, len(data))
        form = None
        if kind in ("open", "ask"):
            sampling = (frame.open.ask if kind == "open" else frame.ask).sampling
            if sampling.HasField("constraint"):
                form = await self._services.forms.begin(constraint_from_proto(sampling.constraint), self.caller.owner)
        self._on_frame(frame, form)

    def _on_frame(self, frame: pb.ClientFrame, form: ConstrainedText | None) -> None:
        if self.state in (StreamState.LEAVING, StreamState.ENDED):
            return  # while the form was compiled
        match frame.WhichOneof("frame"):
            case "open":
                self._on_open(frame.open, form)
            case "ask":
                live = self._attached()
                self._services.rates.on_request(self.caller)
                self._begin(live, self._services.read_ask(frame.ask), form)
            case "draft":
                live, draft = self._attached(), self._drafts.read_draft(frame.draft)
                if live.drafting.takes_drafts:
                    live.session.on_draft(draft)
                else:
                    live.session.on_ack(min(draft.base, len(live.session.tokens)))
                self._services.engine.wake(live)
            case "ack":
                live = self._attached()
                live.session.on_ack(frame.ack.committed)
                self._services.engine.wake(live)
            case "stop":
                if (live := self._attached()).session.ask_id == frame.stop.ask:
                    self._end_answer(live, Finish.CANCELLED)
            case "credit":
                if (feed := self._attached().stream.feed) is not None:
                    feed.on_credit(frame.credit.bytes)
                    self._frame_writer.poke()
            case "set_codec":
                live, wanted = self._attached(), int(frame.set_codec.codec)
                if wanted not in self._codecs:
                    raise ProtocolError("one of the codecs that Open offered", f"codec {wanted}")
                if live.stream.feed is not None:
                    live.stream.feed.codec = Codec(wanted)
            case "set_memory":
                feed, told = self._attached().stream.feed, frame.set_memory
                thin = thin_memory_from_proto(told.thin) if told.HasField("thin") else None
                if feed is not None and self._services.settings.thins_memory:
                    feed.want(thin)
                    self._services.engine.restore_states(self._attached())
                    self._frame_writer.poke()
            case "beat":
                self._attached()  # below: a client that hears nothing continues without the server
                if not frame.beat.reply and not self._lifecycle.hangs:
                    self._frame_writer.put_beat(frame.beat.stamp)
            case "bye":
                self._attached()
                self._free()
                self.state = StreamState.ENDED

    def _on_open(self, message: pb.Open, form: ConstrainedText | None) -> None:
        welcome = open_session(self._host, self.caller, self, message)
        live = self._live = welcome.live
        self._codecs = welcome.codecs
        self.state, self._busy_at = StreamState.OPEN, self._services.clock()
        self._frame_writer.put(pb.ServerFrame(opened=welcome.opened))
        feed = live.stream.feed
        if feed is not None:
            coder, session = self._services.engine.coder, live.session
            code, may_code = partial(coder.code, live), partial(coder.may_code, live)
            self._frame_writer.follow(RowSource(feed, code, may_code, lambda to: session.hashes.short_at(to)))
        if welcome.resume is not None:
            self._services.observer.on_resume(welcome.resume)
        event = "session opened" if welcome.resume in (None, Resume.UNKNOWN) else "session resumed"
        log.info(event, **self._facts(live), cached=welcome.opened.cached_tokens)
        if welcome.ask is not None:
            self._begin(live, welcome.ask, form)
        elif feed is not None:
            feed.rows_ready(live.session.cached)

    def _begin(self, live: LiveSession, ask: Ask, form: ConstrainedText | None) -> None:
        self._drafts, self._undrafted = DraftFrames(), 0
        if self._lifecycle.draining:
            self._send_away(live)
            return
        self._services.let_in(live, self.caller)
        self._busy_at = self._services.clock()
        session = live.session
        backlog = session.on_ask(ask, form)
        if backlog.repeats:
            return
        live.account.on_ask(ask.id, len(session.tokens))
        if session.phase is SessionPhase.ANSWERING:
            if is_traced():
                trace = AnswerTrace(ask.traceparent, live.number, len(session.tokens), session.cached)
                live.account.begin_trace(trace)
            try:
                self._services.reserve(live)
            except MoaError:
                session.on_stop()
                raise
        live.stream.budget.begin_answer()
        if (feed := live.stream.feed) is not None:
            self._frame_writer.void(ask.base)
            feed.crop(ask.base)
            feed.on_forgotten(session.cached)  # a cache that cannot be cut there is read again from an earlier place
            feed.rows_ready(session.cached)
            self._frame_writer.poke()
        if ask.provisional is not None:
            session.on_draft(ask.provisional)
        if backlog.is_news:
            told = backlog.base, session.hashes.short_at(backlog.base), backlog.tokens, backlog.finish
            self.send_verdict(Verdict(session.ask_id, *told, chances=backlog.chances))
        self._services.engine.wake(live)

    # ------------------------------------------------------------ what the engine and the lifecycle say

    def send_verdict(self, verdict: Verdict) -> None:
        self._busy_at = self._services.clock()
        self._undrafted = 0 if verdict.drafted or verdict.stale else self._undrafted + 1
        is_undrafted = self._undrafted > UNDRAFTED and verdict.finish is Finish.UNFINISHED
        lingers = verdict.shared and is_undrafted and verdict.step_ms < LINGER_MS  # or the next one came too late
        self._frame_writer.put_verdict(verdict, lingers=lingers)
        if self._lifecycle.draining and verdict.finish is not Finish.UNFINISHED and self._live is not None:
            self._send_away(self._live)

    def on_rows(self, newest: CodedRows) -> None:
        live = self._live
        if live is None or (feed := live.stream.feed) is None:
            return
        # Rows that take time to make are ready when the next forward runs. With rows that are there at once to draft
        # from, they leave with its verdict: a frame costs more than the step that they come later.
        is_late = newest.chunk.plane in feed.encoded and bool(feed.yielded)
        self._frame_writer.put_rows(newest, with_verdict=is_late and live.turn.stepping)

    def on_spare_time(self) -> None:
        self._frame_writer.poke()

    def on_failure(self, error: MoaError) -> None:
        self._let_go()
        self._fail(error)

    def on_taken_over(self) -> None:
        """The client has come back on another stream."""
        self._let_go()
        self._go_away(b"", "the session continues in another stream")

    def on_displaced(self) -> None:
        """Another stream needs the place."""
        self._let_go()
        self._fail(OverloadedError("The server needed the place of a stream on which nothing was asked."))

    def on_held(self, refusal: RateLimitError) -> None:
        """The caller's tokens are used up: the client comes back when told, and misses nothing."""
        self._leave()
        self._frame_writer.unfollow()
        self._fail(refusal)

    def give_up(self) -> None:
        self._frame_writer.fail(OverloadedError("Too many streams were opened without an Open."))

    def drain(self) -> None:
        """Tells the client how to continue elsewhere, at once or after the running answer: the server is going away."""
        if self._live is None:
            self._frame_writer.fail(self._lifecycle.leaving())
            self._lifecycle.leave(self)
        elif self._live.session.phase is not SessionPhase.ANSWERING:
            self._send_away(self._live)

    def end_refused(self, refusal: AuthenticationError) -> None:
        """Ends the stream and its session: the caller has lost access."""
        self._free()
        self._fail(refusal)

    def end_idle(self, since: float) -> None:
        """Ends the stream if nothing was asked on it since then: the client comes back with its next question."""
        live = self._live
        if live is not None and live.session.phase is not SessionPhase.ANSWERING and self._busy_at < since:
            self._leave()
            self._go_away(live.token, IDLE)

    def end_answer(self) -> None:
        """Ends the running answer: the grace is over."""
        if self._live is not None:
            self._end_answer(self._live, Finish.DRAINING)

    # ------------------------------------------------------------ inside

    def _fail(self, error: MoaError) -> None:
        self.state = StreamState.ENDED
        self._frame_writer.fail(error)

    def _let_go(self) -> None:
        """Lets the session continue without this stream; what is still to be written here carries no memory."""
        self._live = None
        self._frame_writer.unfollow()

    def _attached(self) -> LiveSession:
        if self._live is None:
            raise ProtocolError("no frame after the session's end", "one")
        return self._live

    def _end_answer(self, live: LiveSession, finish: Finish) -> None:
        session = live.session
        if session.phase is SessionPhase.ANSWERING:
            session.on_stop()
            live.account.end_answer()
            live.account.on_written(0, 0, 0, finish)
            self._services.observer.on_finish(finish)
            held = len(session.tokens)
            self.send_verdict(Verdict(session.ask_id, held, session.hashes.short_at(held), (), finish))

    def _send_away(self, live: LiveSession) -> None:
        self._go_away(live.token, "the server is shutting down", self._lifecycle.fleet.names())
        self._lifecycle.leave(self)

    def _go_away(self, token: bytes, reason: str, servers: Sequence[str] = ()) -> None:
        self._frame_writer.put(pb.ServerFrame(go_away=pb.GoAway(resume_token=token, reason=reason, servers=servers)))
        self.state = StreamState.LEAVING
        self._frame_writer.close()

    def _free(self) -> None:
        if self._live is not None:
            self._services.registry.close(self._live)
            self._let_go()

    def _leave(self) -> None:
        if self._live is not None:
            log.info("session detached", **self._facts(self._live))
            self._services.registry.detach(self._live)
            self._live = None

    def _facts(self, live: LiveSession) -> dict[str, int | str]:
        trace = {"trace_id": live.account.trace.trace_id} if live.account.trace is not None else {}
        return {"session": live.number, "tokens": len(live.session.tokens), "steps": live.turn.steps, **trace}
