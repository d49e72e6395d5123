"""`moa-client daemon`: starts, shows and ends the process that holds link, drafter and conversations for all chats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import SettingOrigin, load_settings, load_settings_and_origins, settings_of

from moa_client.daemon.shared_settings import OF_ANSWERS
from moa_client.settings import SECTION, ClientSettings


def given_options(
    settings: ClientSettings, origins: Mapping[str, SettingOrigin], config_file: Path | None
) -> list[str]:
    """Options of `moa-client daemon run` in any folder, and in any environment.

    `origins`: where each of the settings comes from.
    """
    options = [] if config_file is None else ["--config", str(config_file.absolute())]
    known = settings_of(ClientSettings)
    for name, origin in origins.items():
        if origin.source not in ("command line", "environment") or name in OF_ANSWERS:
            continue
        value = getattr(settings, name)
        if isinstance(value, bool):
            options.append(known[name].flag_of(value))
        elif isinstance(value, tuple):
            options += [part for each in value for part in (known[name].flag_of(), str(each))]
        else:
            options += [known[name].flag_of(), str(value)]
    return options


ALL_BUT_DAEMON_DIR = [name for name in settings_of(ClientSettings) if name != "daemon_dir"]
NOT_RUNNING = 3  # the exit code of `status`, as systemctl's


@click.group()
def daemon() -> None:
    """Keep link, drafter and conversations in one process for all chats, the endpoint and the page."""


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
def run(config_file: Path | None, **flags: Any) -> None:
    """Run the daemon in the foreground, until Ctrl-C."""
    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
    from moa_client.commands.actions import daemon_program

    daemon_program.run(settings, given_options(settings, origins, config_file))


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
def start(config_file: Path | None, **flags: Any) -> None:
    """Start the daemon in the background; it keeps running when this shell ends."""
    from moa_client.commands.actions import daemon as actions

    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
    actions.start(settings, given_options(settings, origins, config_file))


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
def restart(config_file: Path | None, **flags: Any) -> None:
    """End the daemon and start it again, with the options and the environment that it was started with."""
    from moa_client.commands.actions import daemon as actions

    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
    actions.restart(settings, given_options(settings, origins, config_file))


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
def stop(config_file: Path | None, **flags: Any) -> None:
    """End the daemon: answers under way are kept as they are, and continue when it is started again."""
    from moa_client.commands.actions import daemon as actions

    actions.stop(load_settings(ClientSettings, SECTION, flags, config_file))


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Say whether the daemon runs, and how its link is; exit code 3 if it does not."""
    from moa_client.commands.actions import daemon as actions

    if not actions.status(load_settings(ClientSettings, SECTION, flags, config_file), as_json=as_json):
        raise click.exceptions.Exit(NOT_RUNNING)


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
@click.option("-n", "--lines", metavar="N", default=50, show_default=True, type=click.IntRange(0), help="How many.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they come, until Ctrl-C.")
def logs(lines: int, follow: bool, config_file: Path | None, **flags: Any) -> None:
    """Print the newest lines of the daemon's log."""
    from moa_client.commands.actions import daemon as actions

    actions.logs(load_settings(ClientSettings, SECTION, flags, config_file), lines, follow=follow)


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install(only_print: bool, config_file: Path | None, **flags: Any) -> None:
    """Write a systemd user unit (or, on macOS, a launchd agent) that starts the daemon when you log in."""
    from moa_client.commands.actions import daemon as actions

    # an error now rather than at the next login
    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
    actions.install(given_options(settings, origins, config_file), only_print=only_print)
