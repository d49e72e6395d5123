"""Starts, shows and ends the process that holds link, drafter and conversations for all chats."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.entry import write_output

from moa_client.daemon.process import (
    daemon_command,
    find_daemon,
    find_paths,
    make_unit,
    restart_daemon,
    start_daemon,
    stop_daemon,
)
from moa_client.settings import ClientSettings


def start(settings: ClientSettings, options: Sequence[str]) -> None:
    """Starts the daemon in the background, with these options."""
    paths = find_paths(settings.daemon_dir)
    status = asyncio.run(find_daemon(paths))
    if status is not None:
        print(f"The daemon is already running (process {status['pid']}).", file=sys.stderr)
        return
    status = asyncio.run(start_daemon(paths, options))
    print(f"The daemon has started (process {status['pid']}). Its log: {paths.log}", file=sys.stderr)


def restart(settings: ClientSettings, options: Sequence[str]) -> None:
    """Has the daemon begin again, with the options and environment that it had; with these, if it does not run."""
    paths = find_paths(settings.daemon_dir)
    status = asyncio.run(restart_daemon(paths, options))
    print(f"The daemon has started (process {status['pid']}). Its log: {paths.log}", file=sys.stderr)


def stop(settings: ClientSettings) -> None:
    """Ends the daemon."""
    pid = asyncio.run(stop_daemon(find_paths(settings.daemon_dir)))
    print("No daemon is running." if pid is None else f"The daemon (process {pid}) has ended.", file=sys.stderr)


def status(settings: ClientSettings, *, as_json: bool) -> bool:
    """Says whether the daemon runs, and how its link is; returns whether it runs."""
    paths = find_paths(settings.daemon_dir)
    found = asyncio.run(find_daemon(paths))
    if as_json:
        write_output(json.dumps(found or {"phase": "not running"}, indent=2) + "\n")
    else:
        write_output(_status_words(found, paths.log))
    return found is not None


def logs(settings: ClientSettings, lines: int, *, follow: bool) -> None:
    """Prints the newest lines of the daemon's log."""
    log = find_paths(settings.daemon_dir).log
    if not log.exists():
        raise NotFoundError(f"There is no log at {log}.", hint="No daemon has been started there yet.")
    os.execvp("tail", ["tail", "-n", str(lines), *(["-F"] if follow else []), str(log)])


def install(options: Sequence[str], *, only_print: bool) -> None:
    """Writes what starts the daemon at each login, or prints it."""
    path, text, command = make_unit(sys.platform, daemon_command(options), Path.home())
    if only_print:
        write_output(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}.", hint="See --print for its text."
        ) from error
    print(f"Written: {path}\nStart it with: {command}", file=sys.stderr)


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
        companion = status.get("companion") or "none"
        lines.append(
            f"drafter {status['drafter'] or 'none'}, companion {companion}, level {status['level'] or 'not known'}"
        )
        count = status["conversations"]
        lines.append(f"{count} open conversation{'' if count == 1 else 's'}")
    if status["url"]:
        lines.append(f"page and endpoint: {status['url']}")
    elif status["web_error"]:
        lines.append(f"no page and no endpoint: {status['web_error']}")
    return "\n".join([*lines, f"log: {log}"]) + "\n"
