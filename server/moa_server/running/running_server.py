"""A server that listens: its health, what is done again and again, and its clean end.

State: whether it drains. Invariant: whatever ends it, every open answer is notified first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import grpc.aio
import structlog

from moa_server.fleet.peers import parse_peers
from moa_server.fleet.watch import FleetWatch
from moa_server.running.addresses import host_port
from moa_server.service.host import LAST_WORD_SECONDS, Host
from moa_server.service.service import Health
from moa_server.settings import ServerSettings

if TYPE_CHECKING:
    from moa_server.tls.listener import TlsListener

IDLE_MS = 60_000  # of a connection without a call; a client in a conversation has one


def channel_options(frame_bytes: int, settings: ServerSettings) -> list[tuple[str, int]]:
    """Options of the gRPC server; docs/architecture.md, "gRPC settings", says why."""
    age = [
        ("grpc.max_connection_age_ms", round(1e3 * settings.connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", round(1e3 * settings.connection_age_grace_seconds)),
    ]
    return [
        *(age if settings.connection_age_seconds else []),
        ("grpc.max_receive_message_length", 2 * frame_bytes),  # above frame_bytes we refuse with our own message
        ("grpc.max_send_message_length", 2 * frame_bytes),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: 1 kB of gzip holds a million tokens
        ("grpc.max_metadata_size", settings.metadata_bytes),
        ("grpc.absolute_max_metadata_size", 2 * settings.metadata_bytes),
        ("grpc.max_concurrent_streams", settings.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.http2.write_buffer_size", 16384),
        ("grpc.http2.bdp_probe", 0),  # its pings took as long as all frames of a client that never stops sending
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a lottery
    ]


VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get(VARIABLE, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name

    def ready(self, status: str) -> None:
        """The server serves. `status`: one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The event loop turns and no forward hangs. The watchdog ends a server that does not say so for long."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=draining")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a manager that does not read must not hold up the event loop
            sender.sendto(text.encode(), self._address)


log = structlog.get_logger()

SWEEP_SECONDS = 1.0  # how late a detached session may be dropped, and a hanging forward be noticed


class RunningServer:
    """A server that listens. Make it with `start`.

    Attributes:
        reloads: what `reload` does, by name.
    """

    def __init__(
        self,
        host: Host,
        server: grpc.aio.Server,
        status: Health,
        port: int,
        tls: TlsListener | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.reloads: list[tuple[str, Callable[[], object]]] = [("keys", host.admission.gate.reload)]
        if tls is not None:
            self.reloads.append(("certificate", tls.reload))
        self._server = server
        self._status = status
        self._sweeper = asyncio.create_task(_sweep(host, status, ServiceManager(), tls))
        self._fleet_watch = self._watch_fleet()

    def _watch_fleet(self) -> asyncio.Task[None] | None:
        """Keeps the server's fleet known from now on; None: the cluster does that, or there is no fleet."""
        settings = self.host.services.settings
        if not settings.peers:
            return None
        own = settings.advertise or host_port(settings.host, self.port)
        return asyncio.create_task(FleetWatch(self.host.lifecycle.fleet, parse_peers(settings.peers), own).run())

    def reload(self) -> None:
        """Reads keys and certificates again; what fails is logged, and leaves the rest alone."""
        for what, read in self.reloads:
            try:
                read()
            except Exception:
                log.exception("reload failed; what was in force stays", what=what)

    async def drain(self, grace_seconds: float) -> None:
        await self._status.drain()
        self.host.lifecycle.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.host.lifecycle.drained()

    async def close(self, seconds: float = LAST_WORD_SECONDS) -> None:
        """Ends all running answers, and all calls once their clients have read that, within `seconds`."""
        self.host.lifecycle.end_answers()
        await self._server.stop(seconds)
        self.host.services.close_sessions()
        background = [task for task in (self._sweeper, self._fleet_watch) if task is not None]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self.host.services.engine.stop()

    async def stop(self, grace_seconds: float) -> None:
        await self.drain(grace_seconds)
        await self.close(min(grace_seconds, LAST_WORD_SECONDS))


async def _sweep(host: Host, status: Health, manager: ServiceManager, tls: TlsListener | None) -> None:
    services, lifecycle, admission = host.services, host.lifecycle, host.admission
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            if lifecycle.watch(services.engine.running):
                log.error("inference hangs") if lifecycle.hangs else log.warning("inference continues")
                await status.tell(hangs=lifecycle.hangs)
            if not lifecycle.hangs:
                manager.alive()
            dropped = services.registry.expire()
            if tls is not None:
                tls.look(admission.allowances.connections)
            lifecycle.end_idle()
            admission.gate.refresh()
            host.end_refused()
            left_out = admission.refusals.take_left_out(services.clock())
        except Exception:
            log.exception("sweeping failed; the next round tries again")
            continue
        if dropped:
            log.info("detached sessions dropped", count=dropped)
        for each in left_out:
            log.warning("calls refused without a line each", **each)
