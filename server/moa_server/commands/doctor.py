"""`moa-server doctor`: examines what a server would meet on this machine, and says what to do."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import click
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings
from moa_shared.programs.output import write_output

from moa_server.settings import SECTION, ServerSettings


@click.command()
@settings_options(ServerSettings, SECTION)
@click.option("--measure", is_flag=True, help="Load MODEL, and measure its speed instead of estimating it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list at the end.")
def doctor(measure: bool, as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Examine what `moa-server serve` with the same options would meet on this machine.

    Each step ends with ok, warn or fail, and says what to do. The exit code is 0 if nothing failed, otherwise 1.
    """
    settings = load_settings(ServerSettings, SECTION, flags, config_file)
    from moa_shared.programs.checks import Check, check_fields, check_line, exit_code
    from moa_shared.programs.cores import parse_cores, pin_to_cores
    from moa_shared.programs.progress import SilentProgress
    from moa_shared.programs.start_line import StartLine

    from moa_server.logs import configure_logs

    configure_logs("plain", "error")
    pin_to_cores(parse_cores(settings.cores))
    from moa_server.doctor.examination import MachineExamination

    line, checks = StartLine(), []
    found = Check("settings", "ok", str(config_file) if config_file is not None else "no file")
    try:
        for check in chain([found], MachineExamination(settings, SilentProgress(), line.show, measures=measure).run()):
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
