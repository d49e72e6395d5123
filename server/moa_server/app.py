"""The server process: gRPC server, health, signals, from the loaded target to a clean end.

State: one event loop, the host. Invariant: whatever ends the process, every open answer is notified first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health  # type: ignore[attr-defined]  # the stubs do not know it
from moa_shared.errors import ConfigError
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.run_loop import loop_name

from moa_server.service.host import Host
from moa_server.service.service import SERVICE, MoaService

log = structlog.get_logger()

TYPICAL_TOKENS = 1024  # of a chat of several turns
SWITCH_SECONDS = 0.0005  # between threads: the loop answers next to a busy inference thread (docs/architecture.md)
LAST_WORD_SECONDS = 1.0  # for a GoAway to be written: a few round trips
SWEEP_SECONDS = 1.0  # how late a detached session may be dropped, and a hanging forward be noticed


IDLE_MS = 60_000  # of a connection without a call; a client in a conversation has one
METADATA_BYTES = 8192  # of one call; ours needs 300


def channel_options(frame_bytes: int, max_connections: int) -> list[tuple[str, int]]:
    """Options of the gRPC server; docs/architecture.md, "gRPC settings", says why."""
    return [
        ("grpc.max_receive_message_length", 2 * frame_bytes),  # above frame_bytes we refuse with our own message
        ("grpc.max_send_message_length", 2 * frame_bytes),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: 1 kB of gzip holds a million tokens
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
        ("grpc.max_concurrent_streams", 100),  # of one connection; a client has two
        ("grpc.max_allowed_incoming_connections", max_connections),
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


class RunningServer:
    """A server that listens. Make it with `start`."""

    def __init__(self, host: Host, server: grpc.aio.Server, status: aio_health.HealthServicer, port: int) -> None:
        self.host = host
        self.port = port
        self._server = server
        self._status = status
        self._sweeper = asyncio.create_task(_sweep(host, status))

    async def drain(self, grace_seconds: float) -> None:
        """Sets health to NOT_SERVING, accepts nothing new; returns once all answers have ended or the grace is over."""
        await self._status.enter_graceful_shutdown()
        self.host.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.host.drained()

    async def close(self, seconds: float = LAST_WORD_SECONDS) -> None:
        """Ends all running answers and calls within `seconds`."""
        self.host.end_answers()
        await self._server.stop(seconds)
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        if self.host.drafter_files is not None:
            await self.host.drafter_files.stop()
        await self.host.engine.stop()

    async def stop(self, grace_seconds: float) -> None:
        """Drains, then closes."""
        await self.drain(grace_seconds)
        await self.close(min(grace_seconds, LAST_WORD_SECONDS))


async def start(host: Host) -> RunningServer:
    """Starts engine and gRPC server.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    settings = host.settings
    server = grpc.aio.server(options=channel_options(host.frame_bytes, settings.max_connections))
    server.add_generic_rpc_handlers((MoaService(host).handler(),))
    status = aio_health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    try:
        port = server.add_insecure_port(host_port(settings.host, settings.port))
    except RuntimeError:
        raise cannot_listen(settings.host, settings.port) from None
    host.engine.start()
    await server.start()
    if host.drafter_files is not None:
        host.drafter_files.begin()
    await _tell_health(status, healthy=True)
    return RunningServer(host, server, status, port)


def check_address(host: str, port: int) -> None:
    """Checks that the address can be listened on, before anything is loaded.

    Raises:
        ConfigError: it is in use, or not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise cannot_listen(host, port) from None
    for family, kind, protocol, _, where in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            return
    raise cannot_listen(host, port)


def cannot_listen(host: str, port: int) -> ConfigError:
    return ConfigError(
        f"Cannot listen on {host_port(host, port)}: it is in use, or no address of this machine.",
        hint="Choose another --host or --port (0: any free port).",
    )


def connect_command(host: str, port: int) -> str:
    """What a user types to talk to this server."""
    any_address = host in ("0.0.0.0", "::", "")
    return f"moa-client chat --server {host_port(socket.gethostname() if any_address else host, port)}"


def host_port(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _tell_health(status: aio_health.HealthServicer, *, healthy: bool) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING if healthy else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", SERVICE):
        await status.set(name, serving)


async def _sweep(host: Host, status: aio_health.HealthServicer) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            if host.watch():
                log.error("inference hangs") if host.hangs else log.warning("inference continues")
                await _tell_health(status, healthy=not host.hangs)
            dropped = host.registry.expire()
        except Exception:
            log.exception("sweeping failed; the next round tries again")
            continue
        if dropped:
            log.info("detached sessions dropped", count=dropped)


async def serve(host: Host, announce: Callable[[str, str], None]) -> None:
    """Serves until SIGTERM or SIGINT; a second signal ends the grace, a third stops at once.

    Args:
        announce: called with the address and the command that connects to it.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[str] = asyncio.Queue(maxsize=8)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _offer, signals, signal.Signals(number).name)
    running = await start(host)
    where = host_port(host.settings.host, running.port)
    connect = connect_command(host.settings.host, running.port)
    target = host.served.identity.target_id
    log.info("serving", target=target, address=where, connect=connect, loop=loop_name(), **_capacity(host))
    announce(where, connect)
    if host.settings.ready_file is not None:
        _write_ready(host.settings.ready_file, where)
    name = await signals.get()
    log.info("draining", signal=name, sessions=len(host.registry))
    await _first_of(running.drain(host.settings.grace_seconds), signals.get())
    await _first_of(running.close(), signals.get())
    log.info("stopped")


def _capacity(host: Host) -> dict[str, object]:
    """Facts for the log: bytes of keys and values, and how many conversations of which length they hold."""
    lengths = sorted({min(tokens, host.served.context_tokens) for tokens in (TYPICAL_TOKENS, 1 << 30)})
    fits = {str(tokens): host.conversations_that_fit(tokens) for tokens in lengths}
    return {"kv_bytes": host.pool.budget, "conversations_by_tokens": fits}


def _offer(signals: asyncio.Queue[str], name: str) -> None:
    with contextlib.suppress(asyncio.QueueFull):
        signals.put_nowait(name)


async def _first_of(*works: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(plan) for plan in works]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _write_ready(path: Path, where: str) -> None:
    try:
        with whole_file(path) as partial:  # who waits for it never reads half an address
            partial.write_text(where + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(
            f"The ready file {path} cannot be written: {error.strerror}.", hint="Check --ready-file."
        ) from None
