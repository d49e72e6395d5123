"""`moa-server`: the command line. Imports torch only when there is something to serve, which keeps --help fast.

Each field of `ServerSettings` is one option; the settings check the values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import MoaError
from moa_shared.programs.config import load_settings
from moa_shared.programs.output import output_errors, tolerate_encoding, write_output

from moa_server.settings import SECTION, ServerSettings

if TYPE_CHECKING:
    from moa_server.loading import LoadExecution

OPTIONS = {  # field: (placeholder for its value, what it does)
    "host": ("ADDRESS", "Address to listen on. The stream is not encrypted."),
    "port": ("PORT", "Port to listen on; 0 takes any free one."),
    "execution": (
        "auto|int8|float32|bf16",
        "The arithmetic that decides the text: int8 is exact and fast on CPUs, float32 the reference, bf16 for GPUs.",
    ),
    "threads": ("N", "Of the target; 0: as many as this process has cores."),
    "cores": ("LIST", "That the server keeps to, such as 0,2-3; empty: any."),
    "context_length": ("TOKENS", "Of one conversation; 0: what the target was trained for."),
    "max_sessions": ("N", "Sessions held, detached ones included."),
    "max_streams": ("N", "Conversations that may be open at once."),
    "kv_bytes": ("BYTES", "Of keys and values of all sessions; 0: three quarters of what is free."),
    "frame_bytes": ("BYTES", "The longest message taken in; 0: what an Open with a whole context needs."),
    "draft_nodes": ("N", "The most draft nodes of one verification."),
    "choose_nodes": ("BOOL", "Verify the draft nodes that are worth their time (true) or all that have arrived."),
    "prefill_chunk": ("TOKENS", "Tokens of a prompt read in one step."),
    "run_ahead_tokens": ("N", "How far to step beyond what a client has acknowledged."),
    "credit_bytes": ("BYTES", "Memory in flight, unless a client names its own credit."),
    "drafter": ("default|deep|none|PATH", "The drafter whose memory rows are served."),
    "memory_share": ("SHARE", "Of an answer's time that memory may take though drafts save none; 1: all is sent."),
    "max_connections": ("N", "Connections held; more are not taken in."),
    "allow_ignore_end_of_text": ("BOOL", "Let clients ask for answers that go on after end-of-text (measurements)."),
    "detached_seconds": ("S", "How long a session waits for its client to come back."),
    "open_seconds": ("S", "How long a new stream may take to open."),
    "write_seconds": ("S", "A client that takes next to nothing in for so long is detached."),
    "grace_seconds": ("S", "That running answers may go on after SIGTERM."),
    "hang_seconds": ("S", "A forward that takes longer makes the server's health NOT_SERVING."),
    "log_format": ("auto|json|plain", "Of the log on standard error; auto is plain on a terminal."),
    "log_level": ("debug|info|warning|error", "Events below it are dropped."),
    "cache_dir": ("FOLDER", "Where models live; else MOA_CACHE_DIR."),
    "ready_file": ("FILE", "Written with HOST:PORT once the server is ready."),
}


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one option for each field of the settings."""
    for name, (metavar, text) in reversed(OPTIONS.items()):
        default = ServerSettings.model_fields[name].default
        value = f"{default:g}" if isinstance(default, float) else default
        shown = "" if default is None else f"  [default: {value}]"
        command = click.option(f"--{name.replace('_', '-')}", metavar=metavar, help=text + shown)(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moa")
def cli() -> None:
    """The server of split inference: runs the target, verifies what clients draft."""


@cli.command()
@click.argument("model", default="default")
@click.option("--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="Else MOA_CACHE_DIR.")
def fetch(model: str, cache_dir: Path | None) -> None:
    """Fetch and convert MODEL now, so that serving it starts from the cache. Prints the folder."""
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    click.echo(resolve(model, cache_dir, make_progress()).folder)


@cli.command()
@click.argument("model", required=False)
@settings_options
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="TOML file, see above.")
def serve(config_file: Path | None, **flags: Any) -> None:
    """Serve MODEL: 'default', a hub id, a local folder or a .gguf file.

    Each option can also be set as MOA_SERVER_<OPTION> in the environment, or in the [server] table of the TOML file
    that --config or MOA_CONFIG names; flags come first, then the environment, then the file. SIGTERM and Ctrl-C let
    running answers end within the grace and take in no new ones; a second one ends the grace.
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
