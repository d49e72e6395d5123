"""`moa-client daemon`: starts, shows and ends the process that holds link, drafter and conversations for all chats."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.output import write_output

from moa_client.daemon.shared_settings import OF_SURFACES
from moa_client.settings import SECTION, ClientSettings

OF_ANSWERS = [name for name in OF_SURFACES if name not in ("daemon_dir", "log_file", "log_level", "settle_seconds")]
ALL_BUT_DAEMON_DIR = [name for name in settings_of(ClientSettings) if name != "daemon_dir"]
NOT_RUNNING = 3  # the exit code of `status`, as systemctl's
Result = TypeVar("Result")


@click.group()
def daemon() -> None:
    """Keep link, drafter and conversations in one process for all chats, the endpoint and the page."""


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
def run(config_file: Path | None, **flags: Any) -> None:
    """Run the daemon in the foreground, until Ctrl-C."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    os.chdir("/")  # the folder of its start may be deleted, or its disk taken away
    from moa_shared.programs.run_loop import make_runner
    from moa_shared.tracing.telemetry import traced

    from moa_client.daemon.paths import find_paths
    from moa_client.daemon.program import run_daemon
    from moa_client.in_process import use_threads
    from moa_client.logs import configure_log, log_traces

    paths = find_paths(settings.daemon_dir)
    configure_log(settings.log_file, settings.log_level)
    use_threads(settings)

    def ready(status: Mapping[str, Any]) -> None:
        print(f"{_now()} The daemon (process {os.getpid()}) listens on {paths.socket}.", file=sys.stderr, flush=True)

    with traced(settings.tracing, "moa-client", log_traces), make_runner() as runner:
        runner.run(run_daemon(settings, paths, given_options(settings, flags, config_file), ready))
    print(f"{_now()} The daemon has ended.", file=sys.stderr, flush=True)


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
def start(config_file: Path | None, **flags: Any) -> None:
    """Start the daemon in the background; it keeps running when this shell ends."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.daemon.paths import find_paths
    from moa_client.daemon.process import find_daemon, start_daemon

    paths = find_paths(settings.daemon_dir)
    status = _run(find_daemon(paths))
    if status is not None:
        print(f"The daemon is already running (process {status['pid']}).", file=sys.stderr)
        return
    status = _run(start_daemon(paths, given_options(settings, flags, config_file)))
    print(f"The daemon has started (process {status['pid']}). Its log: {paths.log}", file=sys.stderr)


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
def restart(config_file: Path | None, **flags: Any) -> None:
    """End the daemon and start it again, with the options that it was started with."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.daemon.paths import find_paths
    from moa_client.daemon.process import find_daemon, start_daemon, stop_daemon

    paths = find_paths(settings.daemon_dir)
    before = _run(find_daemon(paths))
    options = before["options"] if before is not None else given_options(settings, flags, config_file)
    _run(stop_daemon(paths))
    status = _run(start_daemon(paths, options))
    print(f"The daemon has started (process {status['pid']}). Its log: {paths.log}", file=sys.stderr)


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
def stop(config_file: Path | None, **flags: Any) -> None:
    """End the daemon: answers under way are kept as they are, and continue when it is started again."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.daemon.paths import find_paths
    from moa_client.daemon.process import stop_daemon

    pid = _run(stop_daemon(find_paths(settings.daemon_dir)))
    print("No daemon is running." if pid is None else f"The daemon (process {pid}) has ended.", file=sys.stderr)


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Say whether the daemon runs, and how its link is; exit code 3 if it does not."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.daemon.paths import find_paths
    from moa_client.daemon.process import find_daemon

    paths = find_paths(settings.daemon_dir)
    found = _run(find_daemon(paths))
    if as_json:
        import json

        write_output(json.dumps(found or {"phase": "not running"}, indent=2) + "\n")
    else:
        write_output(_status_words(found, paths.log))
    if found is None:
        raise click.exceptions.Exit(NOT_RUNNING)


@daemon.command()
@settings_options(ClientSettings, SECTION, ALL_BUT_DAEMON_DIR)
@click.option("-n", "--lines", metavar="N", default=50, show_default=True, type=click.IntRange(0), help="How many.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they come, until Ctrl-C.")
def logs(lines: int, follow: bool, config_file: Path | None, **flags: Any) -> None:
    """Print the newest lines of the daemon's log."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    from moa_client.daemon.log_tail import tail
    from moa_client.daemon.paths import find_paths

    for line in tail(find_paths(settings.daemon_dir).log, lines, follow=follow):
        write_output(line)


@daemon.command()
@settings_options(ClientSettings, SECTION, OF_ANSWERS)
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install(only_print: bool, config_file: Path | None, **flags: Any) -> None:
    """Write a systemd user unit (or, on macOS, a launchd agent) that starts the daemon when you log in."""
    settings = load_settings(ClientSettings, SECTION, flags, config_file)  # an error now rather than at the next login
    from moa_client.daemon.service_units import make_unit

    unit = make_unit(sys.platform, sys.executable, given_options(settings, flags, config_file))
    if only_print:
        write_output(unit.text)
        return
    unit.write()
    print(f"Written: {unit.path}\nStart it with: {unit.command}", file=sys.stderr)


def given_options(settings: ClientSettings, flags: Mapping[str, Any], config_file: Path | None) -> list[str]:
    """The options of a command line, to be given to another one, in any folder.

    Args:
        settings: what the options were read as.
    """
    options = [] if config_file is None else ["--config", str(config_file.absolute())]
    known = settings_of(ClientSettings)
    for name in (name for name, given in flags.items() if given is not None):
        value = getattr(settings, name)
        if isinstance(value, bool):
            options.append(known[name].flag_of(value))
        elif isinstance(value, tuple):
            options += [part for each in value for part in (known[name].flag_of(), str(each))]
        else:
            options += [known[name].flag_of(), str(value)]
    return options


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio

    return asyncio.run(work)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _status_words(status: Mapping[str, Any] | None, log: Path) -> str:
    if status is None:
        return "No daemon is running. `moa-client daemon start` starts one.\n"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status["since"]))
    lines = [f"running since {since} (process {status['pid']}, moa {status['version']})"]
    if status["phase"] != "ready":
        lines.append(str(status["phase"]))
    else:
        rtt = f", round trip {status['rtt_ms']:.0f} ms" if status["rtt_ms"] is not None else ""
        lines.append(f"link {status['state']} to {status['server']} ({status['target']}{rtt})")
        lines.append(f"drafter {status['drafter'] or 'none'}, level {status['level'] or 'not known'}")
        count = status["conversations"]
        lines.append(f"{count} open conversation{'' if count == 1 else 's'}")
    if status["url"]:
        lines.append(f"page and endpoint: {status['url']}")
    elif status["web_error"]:
        lines.append(f"no page and no endpoint: {status['web_error']}")
    return "\n".join([*lines, f"log: {log}"]) + "\n"
