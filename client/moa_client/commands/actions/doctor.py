"""Examines the way to each server in use."""

from __future__ import annotations

from moa_shared.errors import MoaError
from moa_shared.programs.entry import StartLine, write_output
from moa_shared.programs.machine import Check, check_line, exit_code
from moa_shared.programs.progress import SilentProgress
from moa_shared.programs.run_loop import make_runner

from moa_client.device.kept_companion import with_kept
from moa_client.doctor import ServerExamination, checks_json
from moa_client.in_process import use_threads
from moa_client.servers.book import at_addresses, find_servers, read_book
from moa_client.servers.connecting import make_server
from moa_client.settings import ClientSettings


def examine(settings: ClientSettings, *, as_json: bool) -> int:
    """Examines all servers; the exit code."""
    use_threads(settings)
    with make_runner() as runner:
        return runner.run(_examine(settings, as_json=as_json))


async def _examine(settings: ClientSettings, *, as_json: bool) -> int:
    line, found = StartLine(), dict[str, list[Check]]()
    for entry in find_servers(settings, read_book()):
        checks = found.setdefault(entry.address, [])
        if not as_json:
            write_output(f"{entry.name} ({entry.address})\n" if entry.name else f"{entry.address}\n")
        try:
            server = make_server(entry, settings)
        except MoaError as error:  # its key or its certificates; others may be well
            checks.append(Check("protection", "fail", error.message.rstrip("."), error.hint, error.exit_code))
            if not as_json:
                write_output(check_line(checks[-1]))
            continue
        try:
            meant = with_kept(at_addresses(settings, (entry,)))
            examination = ServerExamination(meant, server, SilentProgress(), line.show)
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
