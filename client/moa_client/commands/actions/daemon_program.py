"""Runs the daemon in this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from moa_shared.programs.run_loop import make_runner
from moa_shared.tracing import traced

from moa_client.daemon.process import daemon_command, find_paths
from moa_client.daemon.program import run_daemon
from moa_client.in_process import use_threads
from moa_client.logs import configure_log, log_traces
from moa_client.settings import ClientSettings


def run(settings: ClientSettings, options: Sequence[str]) -> None:
    """Runs the daemon, until Ctrl-C; where it is told to begin again, with all of its environment."""
    os.chdir("/")  # the folder of its start may be deleted, or its disk taken away
    paths = find_paths(settings.daemon_dir)
    configure_log(settings.log_file)
    use_threads(settings)

    def ready(status: Mapping[str, Any]) -> None:
        print(f"{_now()} The daemon (process {os.getpid()}) listens on {paths.socket}.", file=sys.stderr, flush=True)

    with traced(settings.tracing, "moa-client", log_traces), make_runner() as runner:
        begins_again = runner.run(run_daemon(settings, paths, list(options), ready))
    print(f"{_now()} The daemon has ended.", file=sys.stderr, flush=True)
    if begins_again:
        os.execv(sys.executable, daemon_command(options))


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
