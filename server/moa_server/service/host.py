"""The host: what is served, the limits, the engine and all sessions; every call of the service works on it.

State: the open calls, and whether the server is draining or its inference hangs. Invariant: a draining host
accepts nothing new, and its calls are those that still answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import AuthenticationError, ConfigError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.prefix_hash import NAMED_TOKENS

from moa_server.access.authentication import Gate
from moa_server.access.caller import Caller
from moa_server.access.holdings import OtherReplicasUsage
from moa_server.access.rates import Rates
from moa_server.access.usage import Usage
from moa_server.drafting.forward_cost import NODE_SHARE
from moa_server.engine.engine import Engine
from moa_server.engine.kv_pool import KVPool
from moa_server.engine.live_session import LiveSession
from moa_server.engine.observer import Observer
from moa_server.engine.prefixes.index import PrefixIndex
from moa_server.engine.prefixes.sharing import PrefixSharing
from moa_server.engine.registry import SessionRegistry
from moa_server.engine.schedule import Schedule
from moa_server.engine.session_size import SessionSize
from moa_server.engine.stepper import MemorySource, Stepper
from moa_server.fleet.membership import Membership
from moa_server.service.allowance import Allowances, address_times
from moa_server.service.fetch import DrafterFiles
from moa_server.service.refusal_log import RefusalLog
from moa_server.session.session import Session, SessionLimits
from moa_server.settings import ServerSettings

log = structlog.get_logger()

MOST_UNOPENED = 64  # streams whose Open has not come; an honest one comes with its stream


@dataclass(frozen=True, slots=True)
class Served:
    """The target as the service needs to know it.

    Args:
        identity: what clients must hold in common with it.
        context_tokens: the most tokens of a conversation.
        end_of_text: token ids that end an answer.
        decode: text of some tokens.
        drafters: those whose memory is served.
        step_ms, row_ms: time of a plain step at the start, and of each further row; 0: not measured.
    """

    identity: pb.Identity
    execution: pb.Execution
    vocab_size: int
    context_tokens: int
    end_of_text: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    drafters: tuple[pb.Drafter, ...] = ()
    step_ms: float = 0.0
    row_ms: float = 0.0


class Call(Protocol):
    """An open call, notified when the server goes away."""

    def drain(self) -> None:
        """Ends the call, at once or after its running answer, and leaves the host."""

    def end_answer(self) -> None:
        """Ends the running answer where it is, and then the call."""

    def end_idle(self, since: float) -> None:
        """Ends the call if nothing was asked on it since then."""

    @property
    def caller(self) -> Caller:
        """Who called."""

    def end_refused(self, refusal: AuthenticationError) -> None:
        """Ends the call: its caller may not go on."""


class Unopened(Protocol):
    """A stream whose Open has not come."""

    def give_up(self) -> None:
        """Ends the stream: others need its place."""


class Host:
    """Everything that the service works on.

    Args:
        drafter_files: what clients may fetch; None: nothing.
        gate: who may call; None: everybody.
        observer: learns what happens; None: nobody does.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        served: Served,
        stepper: Stepper,
        settings: ServerSettings,
        *,
        drafter_files: DrafterFiles | None = None,
        gate: Gate | None = None,
        observer: Observer | None = None,
        before: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served = served
        self.settings = settings
        self.drafter_files = drafter_files
        self.clock = clock
        self.observer = observer or Observer()
        self.allowances = Allowances(clock)
        self.address_allowances = Allowances(clock, address_times(settings.peer_requests_per_minute))
        self.gate = gate or Gate()
        self.rates = Rates(
            settings.peer_requests_per_minute, settings.requests_per_minute, settings.tokens_per_minute, clock
        )
        self.refusals = RefusalLog()
        self.sessions_elsewhere, self.kv_elsewhere = OtherReplicasUsage(clock), OtherReplicasUsage(clock)
        self.registry = SessionRegistry(
            settings.max_sessions,
            settings.max_streams,
            settings.detached_seconds,
            self._make_live_session,
            secrets.token_bytes,
            clock,
            self._on_closed,
            self.sessions_elsewhere.running,
        )
        self.prefixes = PrefixIndex[LiveSession](
            0 if settings.share_prefixes == "off" else stepper.target.page_tokens,
            lambda numbers: self.engine.drop_pages(numbers),
        )
        self._sharing = PrefixSharing(stepper, self.prefixes, everyone=settings.share_prefixes == "all")
        self.engine = Engine(
            stepper,
            self.registry.close,
            before,
            Schedule[LiveSession](
                served.row_ms / served.step_ms if served.step_ms else NODE_SHARE,
                served.step_ms,
                settings.prefill_chunk,
                lambda live: live.caller.owner,
            ),
            self._sharing,
            self.observer,
        )
        self.pool = KVPool(
            settings.kv_bytes or stepper.target.kv_bytes(),
            self.engine.release,
            self.prefixes,
            self.kv_elsewhere.running,
        )
        self._calls: set[Call] = set()
        self._empty = asyncio.Event()
        self.draining = False
        self.fleet = Membership()
        self.hangs = False
        self._unopened: dict[Unopened, None] = {}  # oldest first
        self._stepper = stepper
        self._size = SessionSize(stepper, settings.draft_nodes)
        self._limits = SessionLimits(
            served.context_tokens,
            served.vocab_size,
            settings.draft_nodes,
            settings.prefill_chunk,
            settings.run_ahead_tokens,
        )

    @property
    def limits(self) -> pb.Limits:
        settings = self.settings
        return pb.Limits(
            context_tokens=self.served.context_tokens,
            draft_nodes=settings.draft_nodes,
            frame_bytes=self.frame_bytes,
            sessions=settings.max_sessions,
        )

    @property
    def load(self) -> float:
        """How much of this server is taken, 0 to 1, for clients that choose among several servers.

        The largest of four shares that running answers have: of streams, of memory, of the time of a step with one
        more, and of the reading of prompts with one more. 1: nobody new is taken in.
        """
        if self.draining or self.hangs:
            return 1.0
        running = [live for live in self.registry.live_sessions if not live.is_idle]
        answers, readers = len(running), sum(live.session.reads for live in running)
        cost = self.engine.told_cost
        others_ms = answers * cost.row_ms
        time_share = others_ms / (cost.step_ms + others_ms) if others_ms else 0.0
        return min(1.0, max(answers / self.settings.max_streams, self.pool.taken, time_share, readers / (readers + 1)))

    def cached_tokens(self, caller: Caller, prefix_hashes: Sequence[int]) -> int:
        """How much of a text is kept that this caller need not have read.

        Args:
            prefix_hashes: of the text after each 64th token; those beyond the context are not looked at.
        """
        return self._sharing.cached_tokens(caller, prefix_hashes[: self.served.context_tokens // NAMED_TOKENS])

    @property
    def frame_bytes(self) -> int:
        """The longest message accepted."""
        return self.settings.most_frame_bytes(self.served.context_tokens)

    @property
    def most_tokens(self) -> int:
        """The most tokens in one frame: a whole context, or the nodes of one draft."""
        return max(self.served.context_tokens, self.settings.draft_nodes)

    @contextmanager
    def opening(self, stream: Unopened) -> Iterator[None]:
        """Holds one of MOST_UNOPENED places while a stream waits for its Open; the oldest makes room for a new one."""
        self._unopened[stream] = None
        if len(self._unopened) > MOST_UNOPENED:
            oldest = next(iter(self._unopened))
            del self._unopened[oldest]
            oldest.give_up()
        try:
            yield
        finally:
            self._unopened.pop(stream, None)

    def check_settings(self, settings: AnswerSettings) -> None:
        """Raises ConfigError if a client asks for what this server does not do."""
        if settings.ignore_end_of_text and not self.settings.allow_ignore_end_of_text:
            raise ConfigError(
                "This server ends answers at end-of-text.",
                hint="Ask without ignore_end_of_text, or start the server with --allow-ignore-end-of-text.",
            )
        for token, _ in settings.sampling.logit_bias[-1:]:  # the largest
            if token >= self.served.vocab_size:
                raise ConfigError(
                    f"logit_bias names token {token}, outside the vocabulary (0 to {self.served.vocab_size - 1}).",
                    hint="Use the server's tokenizer.",
                )

    def new_execution(self, before: bytes) -> pb.NewExecution | None:
        """The message for a client whose conversation began on another execution than this server's."""
        served = self.served
        if before == served.identity.execution:
            return None
        return pb.NewExecution(
            fingerprint=served.identity.execution, execution=served.execution, end_of_text=sorted(served.end_of_text)
        )

    def check_open(self) -> None:
        """Raises UnavailableError if the server is going away, or its inference hangs."""
        if self.hangs:
            raise UnavailableError("The server's model does not answer.", hint="Restart the server.")
        if self.draining:
            raise self.leaving()

    def leaving(self) -> UnavailableError:
        """What a client is told that comes while the server drains."""
        error = UnavailableError("The server is shutting down.", hint="Connect to another one, or try again later.")
        error.servers = self.fleet.names()
        return error

    def let_in(self, live: LiveSession, caller: Caller) -> None:
        """Lets a session begin its answer, or continue it; to be called before anything else of the question is done.

        Raises:
            RateLimitError: the caller has used up its tokens.
        """
        if live.meter is not None:
            live.meter.end()
        live.meter = self.rates.meter(caller)
        if live.meter is not None:
            live.meter.begin()
        live.held = False

    def reserve(self, live: LiveSession) -> None:
        """Promises a session the memory that the requested answer may take, less what of its text is kept already.

        Raises:
            ContextLengthError: it is more than this server keeps for all.
            OverloadedError: it is not available now.
        """
        self.engine.adopt(live)
        drafter = live.source.drafter if live.server_drafts and live.source is not None else None
        nbytes = self._size.most_nbytes(live.tensors.cache, live.widths, live.session.most_tokens, drafter)
        self.pool.reserve(live, nbytes, self._sharing.page_nbytes(live))

    def conversations_that_fit(self, tokens: int) -> int:
        """How many conversations of so many tokens can have running answers, with the memory rows that take most.

        They share nothing: with a prefix in common there is room for more.
        """
        return self.pool.budget // self._size.largest(tokens)

    def let_draft(self, live: LiveSession, source: MemorySource | None, *, wanted: bool) -> MemorySource | None:
        """Lets the server draft for a session, if its client wishes so and it can.

        Args:
            source: of the memory that the client wants; None: it wants none.

        Returns:
            the source whose rows are to be kept for that; None: the server does not draft.
        """
        source = source or self._stepper.find_source(b"")
        live.server_drafts = wanted and self.settings.drafts_here and source is not None and source.drafter is not None
        return source if live.server_drafts else None

    def watch(self) -> bool:
        """Checks whether the inference thread hangs; returns whether that has changed."""
        before, self.hangs = self.hangs, self.engine.busy_seconds > self.settings.hang_seconds
        return self.hangs is not before

    def end_idle(self) -> None:
        """Ends the streams on which nothing was asked for too long."""
        if self.settings.idle_seconds:
            since = self.clock() - self.settings.idle_seconds
            for call in tuple(self._calls):
                call.end_idle(since)

    def end_refused(self) -> None:
        """Ends the calls and the sessions of callers whose keys are no longer in force."""
        if not self.gate.wants_keys:
            return
        for call in tuple(self._calls):
            if (refusal := self.gate.refusal(call.caller)) is not None:
                call.end_refused(refusal)
        for live in self.registry.live_sessions:
            if self.gate.refusal(live.caller) is not None:
                self.registry.close(live)

    @property
    def calls(self) -> int:
        """How many conversations and answers have a call open."""
        return len(self._calls)

    def enter(self, call: Call) -> None:
        """Registers a call to be notified when the server goes away."""
        self._calls.add(call)

    def leave(self, call: Call) -> None:
        """Removes a call that has ended or was notified."""
        self._calls.discard(call)
        if self.draining and not self._calls:
            self._empty.set()

    def drain(self) -> None:
        """Accepts nothing new; calls end with their running answers."""
        self.draining = True
        if not self._calls:
            self._empty.set()
        for call in tuple(self._calls):
            call.drain()

    async def drained(self) -> None:
        """Waits until every call has been notified."""
        await self._empty.wait()

    def end_answers(self) -> None:
        """Ends all running answers."""
        for call in tuple(self._calls):
            call.end_answer()

    def close_sessions(self) -> None:
        """Ends all sessions: their clients hold the text, and the log says what each has used."""
        for live in self.registry.live_sessions:
            self.registry.close(live)

    def _on_closed(self, live: LiveSession) -> None:
        if live.meter is not None:
            live.meter.end()
        self.pool.forget(live)
        self.engine.free(live)
        log.info("session ended", session=live.number, **live.usage.facts(live.caller, self.clock()))

    def _make_live_session(self, token: bytes) -> LiveSession:
        served = self.served
        session = Session(self._limits, end_of_text=served.end_of_text, decode=served.decode, run_ahead=False)
        return LiveSession(token, session, self._stepper.new_tensors(), usage=Usage(self.clock()))
