"""The handshake of a Converse stream: what an Open asks, whether that can be, and the session that it gets.

Invariant: an Open that is refused changes no session and takes no other's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, ProtocolError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, check_identity, check_protocol
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Plane, ThinMemory
from moa_shared.protocol.protobuf_messages import thin_memory_from_proto

from moa_server.access.limits import Caller
from moa_server.drafting.forward_cost import DraftRecord
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.observer import Resume
from moa_server.engine.server_drafts import drafting_source
from moa_server.engine.stepper import MemorySource
from moa_server.memory.feed import MemoryBudget, MemoryFeed
from moa_server.service.host import Lifecycle
from moa_server.service.services import Services


@dataclass(frozen=True, slots=True)
class Welcome:
    """What an Open got.

    `codecs`: that the client offers and this server has, the client's favourite first. `resume`: what a client that
    came back has found; None: it did not come back.
    """

    live: LiveSession
    codecs: tuple[Codec, ...]
    ask: Ask | None
    resume: Resume | None
    opened: pb.Opened


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """The memory that a client gets.

    Args:
        codec: None: the client wants none, or this server has none.
        source: of its rows; `widths`: of the planes that are sent.
        thin: the rows that are enough for it; None: all are sent.
    """

    codec: Codec | None
    source: MemorySource | None
    widths: dict[Plane, int]
    thin: ThinMemory | None


class OpenHandshake:
    def __init__(self, services: Services, lifecycle: Lifecycle, caller: Caller, listener: Listener) -> None:
        self._services = services
        self._lifecycle = lifecycle
        self._caller = caller
        self._listener = listener

    def answer(self, message: pb.Open) -> Welcome:
        """Attaches the stream to the session that the Open asks for, or to a new one."""
        codecs = self._check(message)
        ask = self._services.read_ask(message.ask) if message.HasField("ask") else None
        found = self._find(message)
        live = found or self._services.registry.new()
        live.session.check_open(message.tokens, ask)
        terms = self._choose_memory(message, codecs)
        was_attached = live.stream.listener is not None
        cached = self._attach(live, message, terms, asks=ask is not None)
        self._agree_on_drafts(live, terms, wanted=message.server_drafts)
        cached = min(cached, live.session.cached)  # less than before if a plane was not kept
        resume = _kind_of(found is not None, was_attached, cached) if message.resume_token else None
        return Welcome(live, codecs, ask, resume, self._opened(message, live, terms, cached))

    def _check(self, message: pb.Open) -> tuple[Codec, ...]:
        """Refuses what no session could give; the codecs that both ends have."""
        self._lifecycle.check_open()
        served = self._services.served
        check_protocol(PROTOCOL_VERSION, message.protocol_version)
        check_identity(served.identity, message.identity, served.drafters)
        if message.HasField("ask"):
            self._services.rates.check_tokens(self._caller)  # before the session changes: what it has written is kept
        codecs = _known_codecs(message.codecs)
        if message.memory_from > len(message.tokens):
            raise ProtocolError(f"memory_from up to {len(message.tokens)}", f"{message.memory_from}")
        return codecs

    def _find(self, message: pb.Open) -> LiveSession | None:
        token = message.resume_token
        return self._services.registry.find(token, self._caller) if token else None

    def _choose_memory(self, message: pb.Open, codecs: Sequence[Codec]) -> MemoryTerms:
        stepper = self._services.engine.stepper
        codec = codecs[0] if codecs and stepper.sources else None
        source = stepper.find_source(message.identity.drafter_fingerprint) if codec is not None else None
        widths = stepper.widths(source, reused_state=message.reused_state) if source is not None else {}
        thin = thin_memory_from_proto(message.thin_memory) if message.HasField("thin_memory") else None
        return MemoryTerms(codec, source, widths, thin if self._services.settings.thins_memory else None)

    def _attach(self, live: LiveSession, message: pb.Open, terms: MemoryTerms, *, asks: bool) -> int:
        """Takes the session over; returns how many of the client's tokens are cached."""
        settings, engine = self._services.settings, self._services.engine
        budget = MemoryBudget(settings.memory_share, engine.told_cost.step_ms or None)
        stream = Attachment(self._listener, self._feed(message, terms), budget)
        self._services.registry.attach(live, self._caller, stream)
        live.session.run_ahead = message.run_ahead
        return live.session.on_open(message.tokens, asks=asks)

    def _feed(self, message: pb.Open, terms: MemoryTerms) -> MemoryFeed | None:
        if terms.codec is None:
            return None
        stepper, source = self._services.engine.stepper, terms.source
        credit = message.credit_bytes or self._services.settings.credit_bytes
        encoded = [plane for plane in terms.widths if source is not None and not stepper.made_by_forward(source, plane)]
        start, thin = message.memory_from, terms.thin
        return MemoryFeed(terms.widths, terms.codec, credit, start, thin=thin, encoded=encoded)

    def _agree_on_drafts(self, live: LiveSession, terms: MemoryTerms, *, wanted: bool) -> None:
        """Settles who drafts, and keeps the rows that this takes; the stream's drafter is judged from scratch."""
        services = self._services
        wanted = wanted and services.settings.drafts_here
        drafts_by = drafting_source(services.engine.stepper, terms.source, wanted=wanted)
        live.drafting.agree(
            by_server=drafts_by is not None,
            drafts_forced=wanted,
            record=DraftRecord(),
            takes_drafts=services.settings.takes_drafts,
            verifies_all=not services.settings.choose_nodes,
        )
        if (kept_by := drafts_by or terms.source) is not None:
            widths = services.engine.stepper.kept_widths(kept_by, terms.widths, drafts=drafts_by is not None)
            services.engine.keep_rows(live, kept_by, widths)

    def _opened(self, message: pb.Open, live: LiveSession, terms: MemoryTerms, cached: int) -> pb.Opened:
        return pb.Opened(
            resume_token=live.token,
            cached_tokens=cached,
            codec=pb.Codec.Name(terms.codec or 0),
            limits=self._services.limits,
            drafter_fingerprint=terms.source.fingerprint if terms.source is not None else b"",
            new_execution=self._services.served.new_execution(message.identity.execution),
            server_drafts=live.drafting.by_server,
            thin_memory=self._services.settings.thins_memory,
            servers=self._lifecycle.fleet.names(),
        )


def _known_codecs(offered: Sequence[int]) -> tuple[Codec, ...]:
    known = {int(codec): codec for codec in Codec}
    codecs = tuple(known[number] for number in offered if number in known)
    if offered and not codecs:
        raise MismatchError("memory codec", ", ".join(codec.name.lower() for codec in Codec), "none of these")
    return codecs


def _kind_of(is_found: bool, was_attached: bool, cached: int) -> Resume:
    if not is_found:
        return Resume.UNKNOWN
    if was_attached:
        return Resume.TAKEN_OVER
    return Resume.CACHED if cached else Resume.READ_AGAIN
