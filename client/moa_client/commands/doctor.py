"""`moa-client doctor`: examines the way to each server, and says what to do and what to expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.output import write_output

from moa_client.settings import SECTION, ClientSettings

USED = {
    "server",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "insecure",
    "model",
    "drafter",
    "mode",
    "drafting",
    "breadth",
    "parts",
    "dtype",
    "threads",
    "cores",
    "connect_seconds",
    "cache_dir",
}


@click.command()
@settings_options(ClientSettings, SECTION, [name for name in settings_of(ClientSettings) if name not in USED])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list at the end.")
def doctor(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Examine the way to each server in use (or to --server), and how fast this device drafts for it.

    The exit code is 0 if nothing failed, otherwise that of the first failure.
    """
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_shared.programs.run_loop import make_runner

    from moa_client.in_process import use_threads

    use_threads(settings)
    with make_runner() as runner:
        code = runner.run(_examine(settings, as_json=as_json))
    if code:
        raise click.exceptions.Exit(code)


async def _examine(settings: ClientSettings, *, as_json: bool) -> int:
    """Examines all servers; the exit code."""
    from moa_shared.programs.checks import Check, check_line, exit_code
    from moa_shared.programs.progress import SilentProgress
    from moa_shared.programs.start_line import StartLine

    from moa_client.doctor.checks import checks_json
    from moa_client.doctor.examination import Examination
    from moa_client.servers.book import read_book
    from moa_client.servers.connecting import make_servers
    from moa_client.servers.finding import at_addresses, find_servers

    line, found = StartLine(), dict[str, list[Check]]()
    for entry in find_servers(settings, read_book()):
        checks = found.setdefault(entry.address, [])
        if not as_json:
            write_output(f"{entry.name} ({entry.address})\n" if entry.name else f"{entry.address}\n")
        try:
            [server] = make_servers([entry], settings)
        except MoaError as error:  # its key or its certificates; others may be well
            checks.append(Check("protection", "fail", error.message.rstrip("."), error.hint, error.exit_code))
            if not as_json:
                write_output(check_line(checks[-1]))
            continue
        try:
            examination = Examination(at_addresses(settings, (entry,)), server, SilentProgress(), line.show)
            async for check in examination.run():
                line.clear()
                checks.append(check)
                if not as_json:
                    write_output(check_line(check))
        finally:
            line.clear()
            await server.close()
    if as_json:
        write_output(checks_json(dict(found)))
    return exit_code([check for checks in found.values() for check in checks])
