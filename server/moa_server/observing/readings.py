"""What a server is doing just now, read from its host on the event loop."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
            those of running answers, which nobody else can have; `kv_budget`: for all.
        keys: in force.
        expires_at: of the certificate, seconds since 1970; None: the server has none.
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
    )
