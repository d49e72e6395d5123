"""What a server is doing just now, read from its host on the event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from moa_server.service.host import Host
from moa_server.tls.listener import TlsListener


@dataclass(frozen=True, slots=True)
class Readings:
    """The state of a server at one moment.

    Args:
        answering, idle, detached: sessions: with a running answer, with a stream and without one.
        calls: conversations and answers whose call is open; `connections`: that have made a call since the start.
        oldest_wait: seconds that some session has waited for its turn.
        kv_held: bytes of keys, values and memory rows; `kv_promised`: that sessions may come to hold; `kv_running`:
            those of running answers, which cannot be freed; `kv_budget`: for all.
        keys: in force.
        expires_at: of the certificate, seconds since 1970; None: the server has none.
        dropped: by the names of the drafters that draft here: whether they guessed worse than look-up.
    """

    answering: int = 0
    idle: int = 0
    detached: int = 0
    calls: int = 0
    connections: int = 0
    oldest_wait: float = 0.0
    kv_held: int = 0
    kv_promised: int = 0
    kv_running: int = 0
    kv_budget: int = 0
    keys: int = 0
    draining: bool = False
    hangs: bool = False
    expires_at: float | None = None
    dropped: Mapping[str, bool] = field(default_factory=dict)


def read_host(host: Host, tls: TlsListener | None) -> Readings:
    """Reads a host; to be called on its event loop."""
    registry, pool, lifecycle, admission = host.services.registry, host.services.pool, host.lifecycle, host.admission
    lives, now, detached = registry.live_sessions, time.monotonic(), registry.detached
    answering = sum(not live.is_idle for live in lives)
    return Readings(
        answering=answering,
        idle=max(0, len(lives) - detached - answering),
        detached=detached,
        calls=lifecycle.calls,
        connections=admission.allowances.connections,
        oldest_wait=max((now - live.turn.queued_at for live in lives if live.turn.queued), default=0.0),
        kv_held=pool.held,
        kv_promised=pool.promised,
        kv_running=pool.running,
        kv_budget=pool.budget,
        keys=admission.gate.keys,
        draining=lifecycle.draining,
        hangs=lifecycle.hangs,
        expires_at=tls.certificate.expires_at.timestamp() if tls is not None else None,
        dropped=_dropped(host),
    )


def _dropped(host: Host) -> dict[str, bool]:
    names = {each.fingerprint: each.name for each in host.services.served.drafters}
    return {
        names[each.fingerprint]: each.drafter.trial.is_dropped
        for each in host.services.engine.stepper.sources
        if each.drafter is not None and each.fingerprint in names
    }
