"""`moa-client daemon`: starts, shows and ends the process that holds link, drafter and conversations for all chats."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import SettingOrigin, load_settings_and_origins, settings_of
from moa_shared.programs.entry import write_output

from moa_client.daemon.process import (
    daemon_command,
    find_daemon,
    find_paths,
    restart_daemon,
    start_daemon,
    stop_daemon,
)
from moa_client.settings import OF_ANSWERS, SECTION, ClientSettings

NOT_RUNNING = 3  # the exit code of `status`, as systemctl's


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
        else:
            values = value if isinstance(value, tuple) else (value,)
            options += [part for each in values for part in (known[name].flag_of(), str(each))]
    return options


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each setting, as its arguments the settings and the same options for others."""

    @settings_options(ClientSettings, SECTION, OF_ANSWERS)
    @wraps(command)
    def run(config_file: Path | None, **flags: Any) -> None:
        settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
        command(settings, given_options(settings, origins, config_file))

    return run


@click.group()
def daemon() -> None:
    """Keep link, drafter and conversations in one process for all chats, the endpoint and the page."""


@daemon.command()
@_with_settings
def run(settings: ClientSettings, options: list[str]) -> None:
    """Run the daemon in the foreground, until Ctrl-C."""
    from moa_shared.programs.run_loop import make_runner
    from moa_shared.tracing import traced

    from moa_client.daemon.program import run_daemon
    from moa_client.in_process import use_threads
    from moa_client.logs import configure_log, log

    os.chdir("/")  # the folder of its start may be deleted, or its disk taken away
    paths = find_paths()
    configure_log()
    use_threads(settings)

    def say(words: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), words, file=sys.stderr, flush=True)

    def ready(status: Mapping[str, Any]) -> None:
        say(f"The daemon (process {os.getpid()}) listens on {paths.socket}.")

    with traced(settings.tracing, "moa-client", log.warning), make_runner() as runner:
        begins_again = runner.run(run_daemon(settings, paths, options, ready))
    say("The daemon has ended.")
    if begins_again:  # with all of its environment
        os.execv(sys.executable, daemon_command(options))


@daemon.command()
@_with_settings
def start(settings: ClientSettings, options: list[str]) -> None:
    """Start the daemon in the background; it keeps running when this shell ends."""
    paths = find_paths()
    if (status := asyncio.run(find_daemon(paths))) is not None:
        print(f"The daemon is already running (process {status['pid']}).", file=sys.stderr)
        return
    _say_started(asyncio.run(start_daemon(paths, options)), paths.log)


@daemon.command()
def restart() -> None:
    """End the daemon and start it again, with the options and the environment that it was started with."""
    paths = find_paths()
    _say_started(asyncio.run(restart_daemon(paths)), paths.log)


def _say_started(status: Mapping[str, Any], log: Path) -> None:
    print(f"The daemon has started (process {status['pid']}). Its log: {log}", file=sys.stderr)


@daemon.command()
def stop() -> None:
    """End the daemon: answers under way are kept as they are, and continue when it is started again."""
    pid = asyncio.run(stop_daemon(find_paths()))
    print("No daemon is running." if pid is None else f"The daemon (process {pid}) has ended.", file=sys.stderr)


@daemon.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> None:
    """Say whether the daemon runs, and how its link is; exit code 3 if it does not."""
    paths = find_paths()
    found = asyncio.run(find_daemon(paths))
    if as_json:
        write_output(json.dumps(found or {"phase": "not running"}, indent=2) + "\n")
    elif found is None:
        write_output("No daemon is running. `moa-client daemon start` starts one.\n")
    else:
        write_output(_status_words(found) + f"log: {paths.log}\n")
    if found is None:
        raise click.exceptions.Exit(NOT_RUNNING)


def _status_words(status: Mapping[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status["since"]))
    lines = [f"running since {since} (process {status['pid']}, moa {status['version']})"]
    if status["phase"] != "ready":
        lines.append(str(status["phase"]))
    else:
        rtt = f", round trip {status['rtt_ms']:.0f} ms" if status["rtt_ms"] is not None else ""
        drafter, companion = status["drafter"] or "none", status.get("companion") or "none"
        count = status["conversations"]
        lines += [
            f"link {status['state']} to {status['server']} ({status['target']}{rtt})",
            f"drafter {drafter}, companion {companion}, level {status['level'] or 'not known'}",
            f"{count} open conversation{'' if count == 1 else 's'}",
        ]
    if status["url"]:
        lines.append(f"page and endpoint: {status['url']}")
    elif status["web_error"]:
        lines.append(f"no page and no endpoint: {status['web_error']}")
    return "".join(f"{line}\n" for line in lines)
