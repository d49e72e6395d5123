"""The handshake of a Converse stream: what an Open asks, whether that can be, and the session that it gets.

Invariant: an Open that is refused changes no session and takes no other's place.
"""

from typing import NamedTuple

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, ProtocolError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, check_identity, check_protocol
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Plane
from moa_shared.protocol.protobuf_messages import thin_memory_from_proto

from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import DraftRecord, MemorySource, drafting_source
from moa_server.engine.live_session import Attachment, Listener, LiveSession, Resume
from moa_server.service.host import Host
from moa_server.service.services import Services
from moa_server.session.memory_feed import MemoryBudget, MemoryFeed


class Welcome(NamedTuple):
    """What an Open got. `codecs`: that both ends have, the client's favourite first."""

    live: LiveSession
    codecs: tuple[Codec, ...]
    ask: Ask | None
    resume: Resume | None  # what a client that came back has found; None: it did not come back
    opened: pb.Opened


def open_session(host: Host, caller: Caller, listener: Listener, message: pb.Open) -> Welcome:
    """Attaches a stream to the session that its Open asks for, or to a new one."""
    services = host.services
    codecs = _check(host, caller, message)
    ask = services.read_ask(message.ask) if message.HasField("ask") else None
    token, settings, engine = message.resume_token, services.settings, services.engine
    stepper = engine.stepper
    found = services.registry.find(token, caller) if token else None
    live = found or services.registry.new()
    session = live.session
    session.check_open(message.tokens, ask)

    # The memory that the client gets: in which codec, whose rows, and of which planes.
    codec = codecs[0] if codecs and stepper.sources else None
    source = stepper.find_source(message.identity.drafter_fingerprint) if codec is not None else None
    widths = stepper.widths(source, reused_state=message.reused_state) if source is not None else {}
    thin, feed = thin_memory_from_proto(message.thin_memory) if message.HasField("thin_memory") else None, None
    if codec is not None:
        encoded = [plane for plane in widths if source is not None and not source.layers_of(plane)]
        thin = thin if settings.thins_memory else None
        credit = message.credit_bytes or settings.credit_bytes
        narrow = source.narrow if source is not None else None
        feed = MemoryFeed(widths, codec, credit, message.memory_from, thin=thin, encoded=encoded, narrow=narrow)

    was_attached = live.stream.listener is not None
    budget = MemoryBudget(settings.memory_share, engine.schedule.cost.plain_ms or None)
    services.registry.attach(live, caller, Attachment(listener, feed, budget))
    engine.restore_states(live)
    session.run_ahead = message.run_ahead
    cached = session.on_open(message.tokens, asks=ask is not None)

    _agree_on_drafts(services, live, source, widths, wanted=message.server_drafts)
    cached = min(cached, session.cached)  # less than before if a plane was not kept
    opened = pb.Opened(
        resume_token=live.token,
        cached_tokens=cached,
        codec=pb.Codec.Name(codec or 0),
        limits=services.limits,
        drafter_fingerprint=source.fingerprint if source is not None else b"",
        new_execution=services.served.new_execution(message.identity.execution),
        server_drafts=live.drafting.by_server,
        thin_memory=settings.thins_memory,
        servers=host.lifecycle.fleet.names(),
    )
    kept = Resume.TAKEN_OVER if was_attached else Resume.CACHED if cached else Resume.READ_AGAIN
    resume = (Resume.UNKNOWN if found is None else kept) if token else None
    return Welcome(live, codecs, ask, resume, opened)


def _agree_on_drafts(
    services: Services, live: LiveSession, source: MemorySource | None, widths: dict[Plane, int], *, wanted: bool
) -> None:
    """Settles who drafts, and keeps the rows that this takes; the stream's drafter is judged from scratch."""
    settings, engine = services.settings, services.engine
    forced = wanted and settings.drafts_here
    drafts_by = drafting_source(engine.stepper.sources, source, wanted=forced)
    live.drafting.agree(
        by_server=drafts_by is not None,
        drafts_forced=forced,
        record=DraftRecord(),
        takes_drafts=settings.takes_drafts,
    )
    if (kept_by := drafts_by or source) is not None:
        engine.keep_rows(live, kept_by, engine.stepper.kept_widths(kept_by, widths, drafts=drafts_by is not None))


def _check(host: Host, caller: Caller, message: pb.Open) -> tuple[Codec, ...]:
    """Refuses what no session could give; the codecs that both ends have."""
    served = host.services.served
    host.lifecycle.check_open()
    check_protocol(PROTOCOL_VERSION, message.protocol_version)
    check_identity(served.identity, message.identity, served.drafters)
    if message.HasField("ask"):
        host.services.rates.check_tokens(caller)  # before the session changes: what it has written is kept
    known = {int(codec): codec for codec in Codec}
    codecs = tuple(known[number] for number in message.codecs if number in known)
    if message.codecs and not codecs:
        raise MismatchError("memory codec", ", ".join(codec.name.lower() for codec in Codec), "none of these")
    if message.memory_from > len(message.tokens):
        raise ProtocolError(f"memory_from up to {len(message.tokens)}", f"{message.memory_from}")
    return codecs
