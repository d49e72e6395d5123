"""The daemon as a program: holds the lock, serves chats, page and endpoint, and ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version

from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.run_loop import end_now

from moa_client.daemon.hub import Hub
from moa_client.daemon.process import DaemonPaths, make_folder, take_lock
from moa_client.daemon.shared_settings import shared_settings
from moa_client.device.kept_companion import with_kept
from moa_client.endpoint.ask import model_source
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import Health, endpoint_routes, health_route
from moa_client.host.surface_session import SocketServer, only_opens
from moa_client.page.routes import page_routes
from moa_client.servers.connecting import connect_servers
from moa_client.settings import ClientSettings
from moa_client.surface.messages import Fields
from moa_client.web.access import Access, read_key, tells_users
from moa_client.web.server import bind, make_app, serve

ENDING = (signal.SIGINT, signal.SIGTERM)
log = logging.getLogger(__name__)


async def run_daemon(
    settings: ClientSettings, paths: DaemonPaths, options: Sequence[str], on_ready: Callable[[Fields], None]
) -> bool:
    """Runs until a signal, or a program with the right to it, ends it; returns whether it is to begin again.

    `on_ready`: called when it listens, with its status.
    """
    make_folder(paths)
    lock = take_lock(paths.lock)
    ended, begin_again = asyncio.Event(), False
    async with AsyncExitStack() as stack:
        stack.callback(lock.close)
        addressed, link = await stack.enter_async_context(connect_servers(with_kept(settings)))
        hub = Hub(addressed, link, version("moa-split"))
        stack.push_async_callback(hub.close)
        loop = asyncio.get_running_loop()

        def on_signal(number: int) -> None:
            if signalled:
                end_now(number)  # something keeps it from ending
            signalled.append(number)
            ended.set()

        signalled: list[int] = []
        for number in ENDING:
            loop.add_signal_handler(number, on_signal, number)
            stack.callback(loop.remove_signal_handler, number)

        async def control(message: Fields) -> Fields:
            nonlocal begin_again
            match message.get("do"):
                case "status":
                    return {
                        "event": "status",
                        **hub.status(),
                        "pid": os.getpid(),
                        "options": list(options),
                        "settings": shared_settings(addressed),
                        "follows_list": not settings.server,  # its servers are those in use when it was started
                    }
                case "offline" | "online" as wish:
                    hub.set_offline(wish == "offline")
                    return {"event": "done"}
                case "shutdown" | "restart" as wish:
                    begin_again = wish == "restart"
                    ended.set()
                    return {"event": "done"}
            return await only_opens(message)

        server = SocketServer(hub.open, control)
        await server.listen(paths.socket)
        stack.push_async_callback(server.close)
        log.warning("listening on %s", paths.socket)
        await serve_web_surfaces(settings, hub, stack)
        on_ready(hub.status())
        await ended.wait()
        log.warning("ending")
    return begin_again


async def serve_web_surfaces(settings: ClientSettings, hub: Hub, stack: AsyncExitStack) -> None:
    """Listens, unless the settings say not to; the hub's status says where, or why not.

    A port that another program has does not keep the daemon from serving chats.
    """
    if not settings.endpoint:
        return
    key = read_key(settings.endpoint_key_file)
    host = settings.endpoint_host
    if not key and not is_loopback(host):
        raise ConfigError(
            f"Everybody who reaches {host} could use the endpoint.",
            hint="Give --endpoint-key-file, or leave --endpoint-host at 127.0.0.1.",
        )
    is_made_here = not key and not tells_users()
    if is_made_here:  # other users of the device would not be told apart: only this one can read the daemon's status
        key = secrets.token_urlsafe()
    try:
        listener = bind(host, settings.endpoint_port)
    except ConfigError as error:
        hub.web_error = str(error)
        log.warning("no page and no endpoint: %s", error)
        return
    closing = asyncio.Event()
    limits = EndpointSettings(settings.settle_seconds)
    routes = [
        *endpoint_routes(model_source(hub.host), limits, closing, hub.store),
        health_route(Health(hub.status, hub.link.describe)),
        *page_routes(hub),
    ]
    access = Access(host, listener.getsockname()[1], settings.allowed_origins, key)
    server = await serve(make_app(routes, access), listener, closing, access)
    stack.push_async_callback(server.close)
    hub.url = f"{server.url}/#key={key}" if is_made_here else server.url
    log.warning("page and endpoint at %s", server.url)
