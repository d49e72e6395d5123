"""A chat that runs alone: link, drafter and conversations in its own process."""

import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

from moa_kernels import set_threads
from moa_kernels.library import available
from moa_shared.models.tokenizer import no_template
from moa_shared.programs.entry import StartLine
from moa_shared.programs.progress import make_progress

from moa_client.chat.chat import Opener
from moa_client.chat.signals import interruptible_work
from moa_client.history.store import HistoryStore
from moa_client.host.host import Host, find, load, reach
from moa_client.host.library import Library
from moa_client.host.surface_session import SocketServer, Watch
from moa_client.mcp import open_tools
from moa_client.servers.connecting import connect_servers
from moa_client.settings import ClientSettings, with_kept
from moa_client.surface.conversation import OpenConversation, open_conversation


async def begin(
    settings: ClientSettings, stack: AsyncExitStack, line: StartLine, remark: Callable[[str], None], *, single: bool
) -> Opener:
    """Connects and loads; what opens conversations. `stack`: closes everything; the others are those of `app.run`."""
    use_threads(settings)
    progress = make_progress()
    settings, fleet = await stack.enter_async_context(connect_servers(with_kept(settings)))
    if not settings.offline:
        line.show(f"Connecting to {settings.server} ...")
    reached = await reach(settings, fleet)
    line.clear()
    for left_out in fleet.skipped:
        remark(left_out)
    if reached.served is not None and reached.served.raw_text_only:
        raise no_template()  # before anything is fetched
    with interruptible_work():
        sources = await find(settings, fleet, reached, progress)
        line.show("Loading the drafter ...")
        started = load(settings, reached, sources, progress)
    line.clear()
    if settings.mcp is not None:
        line.show("Starting the tools ...")
    box = await open_tools(settings.mcp, stack)
    line.clear()
    host = Host(settings, fleet, started)
    stack.push_async_callback(host.close)
    store = HistoryStore() if settings.history and not single else None
    library = Library(host, store, box=box)
    stack.push_async_callback(library.close)

    async def watch(identifier: str | None, system: str | None, single: bool) -> Watch:
        return await library.open(identifier, system, is_read=sys.stdout.isatty(), single=single)

    server = SocketServer(watch)
    stack.push_async_callback(server.close)

    async def open_it(identifier: str | None, system: str | None) -> OpenConversation:
        return await open_conversation(await server.connect(), identifier, system, single=single)

    return open_it


def use_threads(settings: ClientSettings) -> None:
    """Sets the threads of the drafter, which may take two of four cores."""
    set_threads(settings.threads or (2 if available() >= 4 else 1))
