"""`moa-server config`, `doctor` and `capacity`: what is set, and what a server would meet here."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import config_command, settings_options
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.entry import write_output

from moa_server.settings import SECTION, ServerSettings

config = config_command(ServerSettings, SECTION)


@click.command()
@settings_options(ServerSettings, SECTION)
@click.option("--measure", is_flag=True, help="Load MODEL, and measure its speed instead of estimating it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list at the end.")
def doctor(measure: bool, as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Examine what `moa-server serve` with the same options would meet on this machine.

    Each step ends with ok, warn or fail, and says what to do. The exit code is 0 if nothing failed, otherwise 1.
    """
    settings = load_settings(ServerSettings, SECTION, flags, config_file)
    from moa_shared.programs.entry import StartLine
    from moa_shared.programs.machine import Check, check_fields, check_line, exit_code
    from moa_shared.programs.progress import Progress

    from moa_server.logs import configure_logs

    configure_logs("plain", "error")
    from moa_server.doctor import MachineExamination

    line, checks = StartLine(), []
    found = Check("settings", "ok", str(config_file) if config_file is not None else "no file")
    try:
        for check in chain([found], MachineExamination(settings, Progress(), line.show, measures=measure).run()):
            line.clear()
            checks.append(check)
            if not as_json:
                write_output(check_line(check))
    finally:
        line.clear()
    if as_json:
        write_output(json.dumps(list(map(check_fields, checks)), indent=2) + "\n")
    if code := exit_code(checks):
        raise click.exceptions.Exit(code)


PLANNED = ("model", "execution", "device", "threads", "context_length", "kv_bytes", "drafter", "drafting")
OTHERS = [name for name in settings_of(ServerSettings) if name not in (*PLANNED, "cache_dir")]


@click.command()
@settings_options(ServerSettings, SECTION, OTHERS)
@click.option("--memory", metavar="BYTES", type=click.IntRange(1), help="Of the whole server.  [what is free here]")
@click.option("--measure", is_flag=True, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def capacity(memory: int | None, measure: bool, as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Say how many sessions of which length fit into the memory of a server of MODEL, and how fast it would be here.

    The answer comes from sizes alone: nothing is loaded, so a large machine can be planned on a small one.
    """
    if measure:
        hint = "Take `moa-server doctor --measure`: it says how many users this machine's speed feeds."
        raise ConfigError("`moa-server capacity` loads nothing, and has no --measure.", hint=hint)
    if memory and flags["kv_bytes"] is not None:
        said = "--memory is of the whole server, --kv-bytes of keys and values alone."
        raise ConfigError(said, hint="Give one of the two.")
    settings = load_settings(ServerSettings, SECTION, flags | ({"kv_bytes": 0} if memory else {}), config_file)
    from moa_shared.programs.progress import make_progress

    from moa_server.logs import configure_logs

    configure_logs("plain", "warning")
    from moa_server.capacity import capacity_text, plan_capacity

    planned = plan_capacity(settings, memory or 0, make_progress())
    write_output(json.dumps(planned, indent=2) + "\n" if as_json else capacity_text(planned))
