"""The daemon as a program: what it holds for chats, page and endpoint, and how it listens and ends.

State: the phase of the start, and once it has started, the library of conversations. A start without a server, and with
nothing on this device to continue with, is tried again until it succeeds; requests meanwhile learn why it has not.
"""

import asyncio
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version

from moa_shared.errors import ConfigError, MoaError, NotFoundError, UnavailableError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.progress import Progress
from moa_shared.programs.run_loop import end_now

from moa_client.conversation.events import LinkState
from moa_client.conversation.figures import LinkStatus
from moa_client.daemon.process import DaemonPaths, make_folder, take_lock
from moa_client.endpoint.ask import HostModels
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import Health, endpoint_routes, health_route
from moa_client.history.exports import as_json, markdown
from moa_client.history.reading import Summary
from moa_client.history.store import HistoryStore
from moa_client.host.host import Host, find, load, reach
from moa_client.host.library import Library
from moa_client.host.surface_session import SocketServer, Watch, only_opens
from moa_client.host.text_conversation import facts_of
from moa_client.link.connection import Backoff
from moa_client.link.fleet import Fleet
from moa_client.logs import told
from moa_client.mcp import open_tools
from moa_client.page.routes import Crossing, ExportForm, FrameTap, page_routes
from moa_client.servers.connecting import connect_servers
from moa_client.settings import ClientSettings, with_kept
from moa_client.surface.messages import ConversationFacts, Fields
from moa_client.tools.tool import ToolBox
from moa_client.web.access import Access, read_key, tells_users
from moa_client.web.server import bind, make_app, serve

ENDING = (signal.SIGINT, signal.SIGTERM)
START_SECONDS = 30.0  # that a surface waits for the start: a device that fetches nothing has begun in one
UNWATCHED_SECONDS = 60.0  # a page that is loaded again finds its conversation as it was
SHOWN_FACTS = ("target", "drafter", "standalone", "companion", "level", "exact")
NO_LINK = LinkStatus(LinkState.OFFLINE, None, 0.0, 0.0, 0, 0)
MOST_FOUND = 100  # answers of a search
log = logging.getLogger(__name__)


class Hub:
    """Starts the host and opens conversations; implements `PageBackend`: what is open and what is kept in one list."""

    def __init__(self, settings: ClientSettings, link: Fleet) -> None:
        self.settings = settings
        self.link = link
        self.since = time.time()
        self.url = ""  # of page and endpoint; empty: they are not served
        self.web_error = ""  # why not
        self._phase = "starting"
        self._library: Library | None = None
        self._store: HistoryStore | None = None
        self._failure: MoaError | None = None  # of the newest attempt to start
        self._attempted = asyncio.Event()
        self._stack = AsyncExitStack()  # ends the tools
        self._box: ToolBox | None = None
        self._frame_tap = FrameTap()
        self._starting = asyncio.create_task(self._start())

    async def library(self) -> Library:
        if self._library is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_SECONDS):
                    await self._attempted.wait()
        if self._library is not None:
            return self._library
        raise self._failure or UnavailableError(
            f"The daemon is still {self._phase}.", hint="Ask again in a moment; `moa-client daemon status` follows it."
        )

    def store(self) -> HistoryStore | None:
        """The history, once it is open, also without a server; None: nothing is kept."""
        if not self.settings.history:
            return None
        if self._store is None:
            self._store = HistoryStore()
        return self._store

    async def models(self) -> HostModels:
        return HostModels((await self.library()).catalog)

    async def open(self, identifier: str | None, system: str | None, single: bool = False) -> Watch:
        """Opens a conversation for a person, or for a program that asks one question."""
        return await (await self.library()).open(identifier, system, is_read=not single, single=single)

    def status(self) -> Fields:
        host = self._library.host if self._library is not None else None
        link = host.status() if host is not None else NO_LINK
        facts = facts_of(host.device, link) if host is not None else ConversationFacts()
        return {
            "version": version("moa-split"),
            "since": self.since,
            "phase": self._phase,
            **{name: getattr(facts, name) for name in SHOWN_FACTS},
            "server": link.server or self.link.shown.address,
            "state": link.state.value,
            "rtt_ms": link.rtt_ms,
            "conversations": len(self._library.open_conversations) if self._library is not None else 0,
            "wants_online": not (host.is_offline if host is not None else self.settings.offline),
            "reason": host.reason if host is not None else "",
            "url": self.url,
            "web_error": self.web_error,
        }

    def set_offline(self, is_offline: bool) -> None:
        if self._library is not None:
            for host in self._library.catalog.hosts:
                host.set_offline(is_offline)

    async def conversations(self, search: str) -> Sequence[Summary]:
        """Those that are kept, the newest first; with words to search for, those in which they are."""
        store = self.store()
        if store is None:
            return []
        kept = store.list()
        if not search.strip():
            return kept
        found = {hit.identifier for hit in store.search(search, MOST_FOUND)}
        wanted = search.casefold()
        return [each for each in kept if each.identifier in found or wanted in each.title.casefold()]

    async def delete(self, identifier: str) -> None:
        self._kept().load(identifier)
        await (await self.library()).delete(identifier)

    async def export(self, identifier: str, form: ExportForm) -> str:
        stored = self._kept().load(identifier)
        return markdown(stored) if form == "markdown" else json.dumps(as_json(stored), indent=2) + "\n"

    def timeline(self) -> AsyncIterator[Crossing]:
        return self._frame_tap.watch()

    def _kept(self) -> HistoryStore:
        store = self.store()
        if store is None:
            raise NotFoundError("There is no such conversation.", hint="Conversations are not kept here.")
        return store

    async def close(self) -> None:
        """Closes all conversations: answers under way are kept as they are."""
        self._starting.cancel()
        await asyncio.gather(self._starting, return_exceptions=True)
        if self._library is not None:
            await self._library.close()
            await self._library.host.close()
        elif self._store is not None:
            self._store.close()
        await self._stack.aclose()

    async def _start(self) -> None:
        backoff = Backoff()
        while self._library is None:
            try:
                self._library = await self._try_to_start()
            except BaseException as error:  # noqa: BLE001 (a file that cannot be used may be replaced)
                self._failure = told(error, "The start")
                self._phase = f"waiting: {self._failure.message}"
                log.warning("not started: %s", self._failure.message)
                self._attempted.set()
                await asyncio.sleep(backoff.next_seconds())
        self._failure = None
        self._phase = "ready"
        self._attempted.set()
        log.warning("ready: %s at %s", self._library.host.device.target.files.target_id, self.link.shown.address)

    async def _try_to_start(self) -> Library:
        settings, progress = self.settings, Progress()
        self._proceed(f"connecting to {self.link.shown.address}")
        reached = await reach(settings, self.link)
        self._proceed("fetching this device's half of the drafter")
        sources = await find(settings, self.link, reached, progress)
        self._proceed("loading the drafter")
        started = await asyncio.to_thread(load, settings, reached, sources, progress)
        if self._box is None:
            self._proceed("starting the tools")
            self._box = await open_tools(settings.mcp, self._stack)
        host = Host(settings, self.link, started, self._frame_tap.observer)
        library = Library(host, self.store(), UNWATCHED_SECONDS, self._box)
        await library.reopen_unverified()
        return library

    def _proceed(self, phase: str) -> None:
        """Says how far the start is; after a failure, why it waits is worth more."""
        if self._failure is None:
            self._phase = phase


async def run_daemon(
    settings: ClientSettings, paths: DaemonPaths, options: Sequence[str], on_ready: Callable[[Fields], None]
) -> bool:
    """Runs until a signal, or a program with the right to it, ends it; returns whether it is to begin again."""
    make_folder(paths)
    lock = take_lock(paths.lock)
    ended, begin_again = asyncio.Event(), False
    async with AsyncExitStack() as stack:
        stack.callback(lock.close)
        addressed, link = await stack.enter_async_context(connect_servers(with_kept(settings)))
        hub = Hub(addressed, link)
        stack.push_async_callback(hub.close)
        loop = asyncio.get_running_loop()

        def on_signal(number: int) -> None:
            if ended.is_set():
                end_now(number)  # something keeps it from ending
            ended.set()

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
                        "settings": addressed.shared,
                        "follows_list": not settings.server,  # its servers are those in use when it was started
                    }
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
        *endpoint_routes(hub.models, limits, closing, hub.store),
        health_route(Health(hub.status, hub.link.describe)),
        *page_routes(hub),
    ]
    access = Access(host, listener.getsockname()[1], settings.allowed_origins, key)
    server = await serve(make_app(routes, access), listener, closing, access)
    stack.push_async_callback(server.close)
    hub.url = f"{server.url}/#key={key}" if is_made_here else server.url
    log.warning("page and endpoint at %s", server.url)
