"""The server process, from the loaded target to a clean end: `start` makes a server that listens, `serve` its life."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2_grpc
from moa_shared.errors import ConfigError
from moa_shared.programs.atomic import whole_file

from moa_server.addresses import cannot_listen, connect_command, host_port, parse_peers
from moa_server.fleet import FleetWatch
from moa_server.service.host import LAST_WORD_SECONDS, Host
from moa_server.service.service import Health, MoaService
from moa_server.settings import ServerSettings
from moa_server.tls import TlsListener, files_of

if TYPE_CHECKING:
    from moa_server.observing import Observing
    from moa_server.verifier.group import Watch

log = structlog.get_logger()

RELOAD = signal.SIGHUP if sys.platform != "win32" else None
LOST_RANK = "lost rank"  # where signals' names come
SWITCH_SECONDS = 0.0005  # between threads: the loop answers next to a busy inference thread (docs/architecture.md)


async def start(host: Host, port: int | None = None) -> RunningServer:
    """Starts engine and gRPC server. `port`: None: the one of the settings."""
    services = host.services
    settings, port = services.settings, services.settings.port if port is None else port
    tls = make_tls(settings)
    server = grpc.aio.server(options=channel_options(services.frame_bytes, settings))
    server.add_generic_rpc_handlers((MoaService(host).handler(),))
    status = Health()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    try:
        address = host_port(settings.host, port)
        bound = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.credentials())
    except RuntimeError:
        raise cannot_listen(settings.host, port) from None
    services.engine.start()
    await server.start()
    await status.tell(hangs=False)
    return RunningServer(host, server, status, bound, tls)


def make_tls(settings: ServerSettings) -> TlsListener | None:
    files = files_of(settings)
    return TlsListener(files) if files is not None else None


async def serve(
    host: Host, announce: Callable[[str, str], None], observing: Observing | None = None, ranks: Watch | None = None
) -> None:
    """Serves until SIGTERM or SIGINT; a second signal ends the grace, a third stops at once. SIGHUP reloads."""
    sys.setswitchinterval(SWITCH_SECONDS)
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[str] = asyncio.Queue(maxsize=8)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _offer, signals, signal.Signals(number).name)
    running = await start(host)
    if ranks is not None:
        ranks.call(lambda: loop.call_soon_threadsafe(_offer, signals, LOST_RANK))
    gc.freeze()  # a search through all that was loaded takes 40 ms, in which no answer goes on
    if RELOAD is not None:
        loop.add_signal_handler(RELOAD, running.reload)
    if observing is not None:
        observing.follow(host, running.tls)
        log.info("metrics and health", port=observing.port)
    services, settings = host.services, host.services.settings
    where = host_port(settings.host, running.port)
    wants_keys = host.admission.gate.wants_keys
    connect = connect_command(settings.host, running.port, tls=running.tls is not None, keys=wants_keys)
    target = services.served.identity.target_id
    context = services.served.context_tokens
    fits = {str(tokens): services.conversations_that_fit(tokens) for tokens in (min(1024, context), context)}
    facts = {"target": target, "address": where, "connect": connect, "kv_bytes": services.pool.budget}
    log.info("serving", **facts, conversations_by_tokens=fits)
    if settings.ready_file is not None:  # before it is announced: a reader of the line finds the file
        try:
            with whole_file(settings.ready_file) as partial:  # who waits for it never reads half an address
                partial.write_text(where + "\n", "utf-8")
        except OSError as error:
            message = f"The ready file {settings.ready_file} cannot be written: {error.strerror}."
            raise ConfigError(message, hint="Check --ready-file.") from None
    announce(where, connect)
    tell_manager(f"READY=1\nSTATUS=serving {target} on {where}")
    name = await signals.get()
    log.info("draining", signal=name, sessions=len(services.registry))
    tell_manager("STOPPING=1\nSTATUS=draining")
    if name != LOST_RANK:
        await _first_of(running.drain(settings.grace_seconds), signals.get())
    if ranks is not None and ranks.loss is not None:  # what launched the processes ends them all, and cuts nothing here
        await running.drain(0.0)
        await running.close()
        raise ranks.loss
    await _first_of(running.close(), signals.get())
    log.info("stopped")


def _offer(signals: asyncio.Queue[str], name: str) -> None:
    with contextlib.suppress(asyncio.QueueFull):
        signals.put_nowait(name)


async def _first_of(*works: Awaitable[str | None]) -> None:
    tasks = [asyncio.ensure_future(each) for each in works]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def channel_options(frame_bytes: int, settings: ServerSettings) -> list[tuple[str, int]]:
    """Options of the gRPC server; docs/architecture.md, "gRPC settings", says why."""
    age = {"": settings.connection_age_seconds, "_grace": settings.connection_age_grace_seconds}
    return [
        *((f"grpc.max_connection_age{name}_ms", round(1e3 * each)) for name, each in age.items() if age[""]),
        ("grpc.max_receive_message_length", 2 * frame_bytes),  # above frame_bytes we refuse with our own message
        ("grpc.max_send_message_length", 2 * frame_bytes),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: 1 kB of gzip holds a million tokens
        ("grpc.max_metadata_size", settings.metadata_bytes),
        ("grpc.absolute_max_metadata_size", 2 * settings.metadata_bytes),
        ("grpc.max_concurrent_streams", settings.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_connection_idle_ms", 60_000),  # without a call: a client in a conversation has one
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


def tell_manager(text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tells systemd, if it has started this process, how the server is (sd_notify)."""
    name = environment.get("NOTIFY_SOCKET", "")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # a manager that does not read must not hold up the event loop
        if name:
            sender.sendto(text.encode(), "\0" + name[1:] if name.startswith("@") else name)


SWEEP_SECONDS = 1.0  # how late a detached session may be dropped, and a hanging forward be noticed


class RunningServer:
    """A server that listens. Make it with `start`."""

    def __init__(
        self, host: Host, server: grpc.aio.Server, status: Health, port: int, tls: TlsListener | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self._server = server
        self._status = status
        self._background = [asyncio.create_task(_sweep(host, status, tls))]
        settings = host.services.settings
        if settings.peers:
            own = settings.advertise or host_port(settings.host, port)
            watch = FleetWatch(host.lifecycle.fleet, parse_peers(settings.peers), own)
            self._background.append(asyncio.create_task(watch.run()))

    def reload(self) -> None:
        """Reads keys and certificates again; what fails is logged, and leaves the rest alone."""
        for what, read in (("keys", self.host.admission.gate), ("certificate", self.tls)):
            try:
                if read is not None:
                    read.refresh(at_once=True)
            except Exception:
                log.exception("reload failed; what was in force stays", what=what)

    async def drain(self, grace_seconds: float) -> None:
        await self._status.drain()
        self.host.lifecycle.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.host.lifecycle.drained.wait()

    async def close(self, seconds: float = LAST_WORD_SECONDS) -> None:
        """Ends all running answers, and all calls once their clients have read that, within `seconds`."""
        self.host.lifecycle.end_answers()
        await self._server.stop(seconds)
        self.host.services.close_sessions()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.host.services.engine.stop()

    async def stop(self, grace_seconds: float) -> None:
        await self.drain(grace_seconds)
        await self.close(min(grace_seconds, LAST_WORD_SECONDS))


async def _sweep(host: Host, status: Health, tls: TlsListener | None) -> None:
    services, lifecycle, admission = host.services, host.lifecycle, host.admission
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            if lifecycle.watch(services.engine.thread.running):
                log.error("inference hangs") if lifecycle.hangs else log.warning("inference continues")
                await status.tell(hangs=lifecycle.hangs)
            if not lifecycle.hangs:
                tell_manager("WATCHDOG=1")  # which ends a server that does not say so for long
            dropped = services.registry.expire()
            if tls is not None:
                tls.refresh()
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
