"""`moa-client doctor`: examines the way to each server, and says what to do and what to expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from moa_shared.errors import MoaError
from moa_shared.programs.entry import StartLine, write_output

from moa_client.commands import ALL, with_settings
from moa_client.settings import ClientSettings

if TYPE_CHECKING:
    pass

USED = {"server", "tls", "tls_ca", "insecure", "model", "drafter", "companion", "drafting", "threads", "cache_dir"}


@click.command()
@with_settings([name for name in ALL if name not in USED])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list at the end.")
def doctor(settings: ClientSettings, as_json: bool) -> None:
    """Examine the way to each server in use (or to --server), and how fast this device drafts for it.

    The exit code is 0 if nothing failed, otherwise that of the first failure.
    """
    from moa_shared.programs.run_loop import make_runner

    from moa_client.in_process import use_threads

    use_threads(settings)
    with make_runner() as runner:
        if code := runner.run(_examine(settings, as_json=as_json)):
            raise click.exceptions.Exit(code)


async def _examine(settings: ClientSettings, *, as_json: bool) -> int:
    """Examines all servers; the exit code."""
    from moa_shared.programs.machine import Check, check_line, exit_code
    from moa_shared.programs.progress import SilentProgress

    from moa_client.device.kept_companion import with_kept
    from moa_client.doctor import ServerExamination, checks_json
    from moa_client.servers.book import at_addresses, find_servers, read_book
    from moa_client.servers.connecting import make_server

    line, found = StartLine(), dict[str, list[Check]]()

    def say(words: str) -> None:
        line.clear()
        if not as_json:
            write_output(words)

    for entry in find_servers(settings, read_book()):
        checks = found.setdefault(entry.address, [])
        say(f"{entry.name} ({entry.address})\n" if entry.name else f"{entry.address}\n")
        try:
            server = make_server(entry, settings)
        except MoaError as error:  # its key or its certificates; others may be well
            checks.append(Check("protection", "fail", error.message.rstrip("."), error.hint, error.exit_code))
            say(check_line(checks[-1]))
            continue
        try:
            meant = with_kept(at_addresses(settings, (entry,)))
            async for check in ServerExamination(meant, server, SilentProgress(), line.show).run():
                checks.append(check)
                say(check_line(check))
        finally:
            line.clear()
            await server.close()
    if as_json:
        write_output(checks_json(dict(found)))
    return exit_code([check for checks in found.values() for check in checks])
