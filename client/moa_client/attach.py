"""Has a chat use the daemon. Imports nothing heavy: a chat that attaches is there at once."""

from __future__ import annotations

from collections.abc import Callable, Collection

from moa_shared.programs.entry import StartLine

from moa_client.chat.chat import Opener
from moa_client.daemon.process import find_daemon, find_paths, start_daemon
from moa_client.daemon.shared_settings import differences, shared_settings
from moa_client.device.kept_companion import with_kept
from moa_client.servers.book import at_addresses, find_servers, read_book
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import OpenConversation, connect, open_conversation


async def attach(
    settings: ClientSettings,
    line: StartLine,
    remark: Callable[[str], None],
    *,
    named: Collection[str],
    single: bool,
    may_start: bool,
) -> Opener | None:
    """What opens conversations of the daemon; None: there is none that this chat can use.

    Args:
        line: reports progress.
        remark: takes what the user should know.
        named: the settings that were given; the others are the daemon's.
        single: one answer only, which is not kept.
        may_start: start a daemon if none runs.
    """
    paths = find_paths(settings.daemon_dir)
    status = await find_daemon(paths)
    if status is None:
        if not may_start:
            return None
        line.show("Starting the daemon ...")
        status = await start_daemon(paths, [])
    if status.get("follows_list"):  # a daemon of an older version does not say
        named = {*named, "server"}  # another one may be in use since it was started
    addressed = with_kept(at_addresses(settings, find_servers(settings, read_book())))
    if others := differences(shared_settings(addressed), status["settings"], named):
        line.clear()
        if not single:
            what = "a setting" if len(others) == 1 else "settings"
            remark(
                f"(The daemon runs with {what} other than this chat's: {', '.join(others)}. The chat runs without it.)"
            )
        return None

    async def open_it(identifier: str | None, system: str | None) -> OpenConversation:
        if not settings.offline:
            line.show(f"Connecting to {status['server']} ...")
        try:
            try:
                ends = await connect(paths.socket)
            except OSError:  # it has ended since
                line.show("Starting the daemon again ...")
                await start_daemon(paths, status["options"])
                ends = await connect(paths.socket)
            return await open_conversation(ends, identifier, system, single=single)
        finally:
            line.clear()

    return open_it
