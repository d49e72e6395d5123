"""The daemon as a program: holds the lock, listens, and ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version

from moa_shared.programs.run_loop import end_now

from moa_client.daemon.hub import Hub
from moa_client.daemon.paths import DaemonLock, DaemonPaths, Holder, make_folder
from moa_client.daemon.shared_settings import shared_settings
from moa_client.daemon.web_surfaces import serve_web_surfaces
from moa_client.device.kept_companion import with_kept
from moa_client.host.surface_session import SocketServer, only_opens
from moa_client.servers.connecting import connect_servers
from moa_client.settings import ClientSettings
from moa_client.surface.messages import Fields

ENDING = (signal.SIGINT, signal.SIGTERM)
MOST_FILES = 4096  # open ones, sockets included: many systems begin with 1,024
log = logging.getLogger(__name__)


async def run_daemon(
    settings: ClientSettings, paths: DaemonPaths, options: Sequence[str], on_ready: Callable[[Fields], None]
) -> bool:
    """Runs until a signal, or a program with the right to it, ends it; returns whether it is to begin again.

    `on_ready`: called when it listens, with its status.
    """
    make_folder(paths)
    _allow_files(MOST_FILES)
    lock = DaemonLock(paths.lock, Holder(os.getpid(), time.time(), version("moa-split")))
    ended, begin_again = asyncio.Event(), False
    async with AsyncExitStack() as stack:
        stack.callback(lock.release)
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


def _allow_files(wanted: int) -> None:
    """Raises the limit of open files as far as the system lets a user, never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
