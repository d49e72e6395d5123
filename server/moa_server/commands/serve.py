"""`moa-server serve`. Imports torch only when there is something to serve, which keeps --help fast."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import MoaError
from moa_shared.programs.addresses import host_of
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import write_output

from moa_server.settings import SECTION, ServerSettings

if TYPE_CHECKING:
    from moa_server.loading import LoadExecution
    from moa_server.verifier.group import Group


@click.command()
@settings_options(ServerSettings, SECTION)
def serve(config_file: Path | None, **flags: Any) -> None:
    """Serve MODEL: 'default', a hub id, a local folder, a .gguf file, or a name that `moa-server models` shows.

    A name of `moa-server models --all` is fetched, with its drafter and companion, unless they are here.

    Each option can also be set as MOA_SERVER_<OPTION> in the environment, or in the [server] table of the TOML file
    that --config or MOA_CONFIG names; options come first, then the environment, then the file. `moa-server config`
    shows what is in force. SIGTERM and Ctrl-C let running answers end within the grace period and refuse new ones;
    a second one stops at once. SIGHUP reads keys and certificates again.
    """
    run(load_settings(ServerSettings, SECTION, flags, config_file), config_file=config_file)


def run(settings: ServerSettings, load: LoadExecution | None = None, config_file: Path | None = None) -> None:
    """Loads what the settings name and serves it until a signal."""
    if os.getpid() == 1:  # of a container: the kernel lets nothing end it that it does not handle, while it loads
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if (reload := getattr(signal, "SIGHUP", None)) is not None:
        signal.signal(reload, signal.SIG_IGN)  # what it would read again has not been read yet
    import structlog
    from moa_shared.programs.progress import Progress, make_progress
    from moa_shared.programs.run_loop import make_runner
    from moa_shared.tracing import traced

    from moa_server.logs import LogProgress, configure_logs

    log, metrics = structlog.get_logger(), None
    if settings.metrics_port is not None:
        from moa_server.observing import Metrics

        metrics = Metrics()
    on_event = metrics.on_log if metrics is not None else None
    is_json = configure_logs(settings.log_format, settings.log_level, on_event=on_event)
    progress = LogProgress() if is_json else make_progress()
    shown = progress if sys.stderr.isatty() else Progress()
    with shown.task("Starting moa-server"):  # a second, of imports: who waits at a terminal sees that it has begun
        from moa_shared.models import resolve

        from moa_server.addresses import check_address
        from moa_server.app import make_tls
        from moa_server.app import serve as serve_host
        from moa_server.loading import load_host
        from moa_server.verifier.execution_level import load_execution
        from moa_server.verifier.target import rank_of

    observing = None
    group: Group | None = None
    try:
        rank = rank_of(os.environ)
        if rank is not None:
            from moa_server.verifier.group import join

            group = join(rank, settings.hang_seconds)
            if rank.number:
                from moa_server.verifier.torch_target import follow

                files = resolve(settings.model, settings.cache_dir, progress)
                execution = load_execution(files, settings, progress, group)
                execution.before()
                follow(execution.target, group)
                return
            load = load or partial(load_execution, group=group)
        check_address(settings.host, settings.port)
        make_tls(settings)  # an error now, rather than after the model is loaded
        if metrics is not None and settings.metrics_port is not None:
            from moa_server.observing import Observing

            observing = Observing(metrics, settings.metrics_host, settings.metrics_port, settings.hang_seconds)
            observing.names.add(host_of(settings.advertise).lower())
        host = load_host(settings, progress, load, metrics)
        log.info("settings", config=str(config_file or "none"), keys_file=str(settings.keys_file or "none"))
        target = host.services.served.identity.target_id

        def announce(where: str, connect: str) -> None:
            write_output(f"serving {target} on {where}\n")
            if sys.stdout.isatty():
                write_output(f"To talk to it: {connect}\n")

        with (
            traced(settings.tracing, "moa-server", lambda sentence: log.warning("traces", reason=sentence)),
            make_runner() as runner,
        ):
            runner.run(serve_host(host, announce, observing, group.watch if group is not None else None))
        if group is not None:
            group.stop()
    except MoaError as error:
        if is_json:
            log.error("not serving", code=error.code, reason=error.message, hint=error.hint)
        elif group is None:
            raise
        else:
            print(f"Error: {error}", file=sys.stderr)
        if group is not None:
            group.leave(error.exit_code)
        sys.exit(error.exit_code)
    finally:
        if observing is not None:
            observing.stop()
