"""`moa-client doctor`: examines the way to each server, and says what to do and what to expect."""

from pathlib import Path
from typing import Any

import click
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.entry import StartLine, write_output

from moa_client.settings import SECTION, ClientSettings

USED = {"server", "tls", "tls_ca", "insecure", "model", "drafter", "companion", "drafting", "threads", "cache_dir"}


@click.command()
@settings_options(ClientSettings, SECTION, [name for name in settings_of(ClientSettings) if name not in USED])
def doctor(config_file: Path | None, **flags: Any) -> None:
    """Examine the way to each server in use (or to --server), and how fast this device drafts for it.

    The exit code is 0 if nothing failed, otherwise that of the first failure.
    """
    from moa_shared.programs.run_loop import make_runner

    from moa_client.in_process import use_threads

    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    use_threads(settings)
    with make_runner() as runner:
        if code := runner.run(_examine(settings)):
            raise click.exceptions.Exit(code)


async def _examine(settings: ClientSettings) -> int:
    from moa_shared.programs.machine import Check, check_line, exit_code
    from moa_shared.programs.progress import Progress

    from moa_client.doctor import ServerExamination
    from moa_client.servers.book import at_addresses, find_servers, read_book
    from moa_client.servers.connecting import make_server
    from moa_client.settings import with_kept

    line, checks = StartLine(), list[Check]()

    def say(words: str) -> None:
        line.clear()
        write_output(words)

    for entry in find_servers(settings, read_book()):
        say(f"{entry.name} ({entry.address})\n" if entry.name else f"{entry.address}\n")
        try:
            server = make_server(entry, settings)
        except MoaError as error:  # its key or its certificates; others may be well
            checks.append(Check("protection", "fail", error.message.rstrip("."), error.hint, error.exit_code))
            say(check_line(checks[-1]))
            continue
        try:
            meant = with_kept(at_addresses(settings, (entry,)))
            async for check in ServerExamination(meant, server, Progress(), line.show).run():
                checks.append(check)
                say(check_line(check))
        finally:
            line.clear()
            await server.close()
    return exit_code(checks)
