"""`moa-client doctor`: examines the way to each server, and says what to do and what to expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings, settings_of

from moa_client.settings import SECTION, ClientSettings

USED = {"server", "tls", "tls_ca", "insecure", "model", "drafter", "companion", "drafting", "threads", "cache_dir"}


@click.command()
@settings_options(ClientSettings, SECTION, [name for name in settings_of(ClientSettings) if name not in USED])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list at the end.")
def doctor(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Examine the way to each server in use (or to --server), and how fast this device drafts for it.

    The exit code is 0 if nothing failed, otherwise that of the first failure.
    """
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.commands.actions import doctor as actions

    if code := actions.examine(settings, as_json=as_json):
        raise click.exceptions.Exit(code)
