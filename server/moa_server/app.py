"""The server process, from the loaded target to a clean end: `start` makes a server that listens, `serve` its life.

State: one event loop, the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2_grpc
from moa_shared.errors import ConfigError
from moa_shared.programs.atomic import whole_file

from moa_server.running.addresses import cannot_listen, connect_command, host_port
from moa_server.running.running_server import RunningServer, ServiceManager, channel_options
from moa_server.service.host import Host
from moa_server.service.service import Health, MoaService
from moa_server.service.services import Services
from moa_server.settings import ServerSettings
from moa_server.tls.listener import files_of

if TYPE_CHECKING:
    from moa_server.observing.observing import Observing
    from moa_server.tls.listener import TlsListener
    from moa_server.verifier.parallel.group import Watch

log = structlog.get_logger()

TYPICAL_TOKENS = 1024  # of a chat of several turns
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
    status = Health(host.admission.allowances)
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
    if files is None:
        return None
    from moa_server.tls.listener import TlsListener  # the library of certificates is not light

    return TlsListener(files)


async def serve(
    host: Host,
    announce: Callable[[str, str], None],
    observing: Observing | None = None,
    ranks: Watch | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; a second signal ends the grace, a third stops at once. SIGHUP reloads.

    `ranks`: watches the processes that share the target; None: there are no others.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[str] = asyncio.Queue(maxsize=8)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _offer, signals, signal.Signals(number).name)
    running = await start(host)
    if ranks is not None:
        ranks.call(lambda: loop.call_soon_threadsafe(_offer, signals, LOST_RANK))
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
    log.info("serving", target=target, address=where, connect=connect, loop=loop_name(), **_capacity(services))
    if settings.ready_file is not None:  # before it is announced: a reader of the line finds the file
        _write_ready(settings.ready_file, where)
    announce(where, connect)
    manager = ServiceManager()
    manager.ready(f"serving {target} on {where}")
    name = await signals.get()
    log.info("draining", signal=name, sessions=len(services.registry))
    manager.stopping()
    if name != LOST_RANK:
        await _first_of(running.drain(settings.grace_seconds), signals.get())
    if ranks is not None and ranks.loss is not None:  # what launched the processes ends them all, and cuts nothing here
        await running.drain(0.0)
        await running.close()
        raise ranks.loss
    await _first_of(running.close(), signals.get())
    log.info("stopped")


def _capacity(services: Services) -> dict[str, int | dict[str, int]]:
    """Facts for the log: bytes of keys and values, and how many conversations of which length they hold."""
    lengths = sorted({min(tokens, services.served.context_tokens) for tokens in (TYPICAL_TOKENS, 1 << 30)})
    fits = {str(tokens): services.conversations_that_fit(tokens) for tokens in lengths}
    return {"kv_bytes": services.pool.budget, "conversations_by_tokens": fits}


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


def _write_ready(path: Path, where: str) -> None:
    try:
        with whole_file(path) as partial:  # who waits for it never reads half an address
            partial.write_text(where + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(
            f"The ready file {path} cannot be written: {error.strerror}.", hint="Check --ready-file."
        ) from None


def loop_name() -> str:
    """The package of the running loop, for logs: `uvloop` or `asyncio`."""
    packages = {kind.__module__.partition(".")[0] for kind in type(asyncio.get_running_loop()).__mro__}
    return "uvloop" if "uvloop" in packages else "asyncio"
