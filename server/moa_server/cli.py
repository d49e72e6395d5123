"""`moa-server`: the command line. Imports torch only when there is something to serve, which keeps --help fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import CONTEXT, config_command, settings_options
from moa_shared.programs.config import load_settings
from moa_shared.programs.output import output_errors, tolerate_encoding, write_output

from moa_server.settings import SECTION, ServerSettings

if TYPE_CHECKING:
    from moa_server.loading import LoadExecution


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="moa")
def cli() -> None:
    """The server of split inference: runs the target, verifies what clients draft."""


cli.add_command(config_command(ServerSettings, SECTION))


@cli.command()
@click.argument("model", default="default")
@click.option(
    "--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="Where models are kept.  [MOA_CACHE_DIR]"
)
def fetch(model: str, cache_dir: Path | None) -> None:
    """Fetch and convert MODEL now, so that serving it starts from the cache. Prints the folder."""
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    click.echo(resolve(model, cache_dir, make_progress()).folder)


@cli.command()
@settings_options(ServerSettings, SECTION)
def serve(config_file: Path | None, **flags: Any) -> None:
    """Serve MODEL: 'default', a hub id, a local folder or a .gguf file.

    Each option can also be set as MOA_SERVER_<OPTION> in the environment, or in the [server] table of the TOML file
    that --config or MOA_CONFIG names; options come first, then the environment, then the file. `moa-server config`
    shows what is in force. SIGTERM and Ctrl-C let running answers end within the grace period and refuse new ones;
    a second one stops at once.
    """
    run(load_settings(ServerSettings, SECTION, flags, config_file))


def run(settings: ServerSettings, load: LoadExecution | None = None) -> None:
    """Loads what the settings name and serves it until a signal.

    Args:
        load: makes the target; None: as `load_host` does.
    """
    from moa_shared.programs.cores import parse_cores, pin_to_cores
    from moa_shared.programs.progress import make_progress
    from moa_shared.programs.run_loop import make_runner

    from moa_server.logs import LogProgress, configure_logs, log_refusal

    is_json = configure_logs(settings.log_format, settings.log_level)
    pin_to_cores(parse_cores(settings.cores))
    from moa_server.app import check_address
    from moa_server.app import serve as serve_host
    from moa_server.loading import load_host

    try:
        check_address(settings.host, settings.port)
        host = load_host(settings, LogProgress() if is_json else make_progress(), load)
        target = host.served.identity.target_id

        def announce(where: str, connect: str) -> None:
            write_output(f"serving {target} on {where}\n")
            if sys.stdout.isatty():
                write_output(f"To talk to it: {connect}\n")

        with make_runner() as runner:
            runner.run(serve_host(host, announce))
    except MoaError as error:
        if not is_json:
            raise
        log_refusal(error)
        sys.exit(error.exit_code)


def main() -> None:
    """Entry point: an error of the catalogue becomes one line on standard error and its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes raw lines of its own between our sentences
    tolerate_encoding()
    try:
        with output_errors():
            cli()
    except MoaError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
