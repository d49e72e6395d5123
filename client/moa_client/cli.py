"""`moa-client`: the command line. Imports nothing heavy, so that --help answers at once."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import CancelledAnswerError, ConfigError, MoaError
from moa_shared.programs.command_line import CONTEXT, config_command, settings_options
from moa_shared.programs.config import load_settings
from moa_shared.programs.cores import parse_cores, pin_to_cores
from moa_shared.programs.output import close_output, output_errors, tolerate_encoding
from moa_shared.programs.run_loop import make_runner

from moa_client.chat.signals import exiting_on_signals
from moa_client.chat.start_line import StartLine
from moa_client.logs import configure_log
from moa_client.settings import SECTION, ClientSettings

MANY_CORES = 4  # with so many, a drafter may take two


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="moa")
def cli() -> None:
    """The client of moa: drafts on this device what a server's large model will say."""


cli.add_command(config_command(ClientSettings, SECTION))


@cli.command()
@click.argument("prompt", required=False)
@settings_options(ClientSettings, SECTION)
def chat(prompt: str | None, config_file: Path | None, **flags: Any) -> None:
    """Chat with a server's model; with PROMPT, or a prompt on standard input, print one answer.

    The answer goes to standard output, a line of figures to standard error. Every option can also be set as
    MOA_CLIENT_<OPTION> in the environment, or in the [client] table of a TOML file; options come first, then the
    environment, then the file. `moa-client config` shows what is in force.
    """
    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    configure_log(settings.log_file, settings.log_level)
    pin_to_cores(parse_cores(settings.cores))
    line = StartLine()
    line.show("Starting ...")
    from moa_kernels import set_threads
    from moa_kernels.threads import available

    from moa_client.app import run

    set_threads(settings.threads or (2 if available() >= MANY_CORES else 1))
    try:
        with make_runner() as runner:
            runner.run(run(settings, prompt, line))
    except BrokenPipeError:  # the reader has had enough; nothing may be written at exit either
        close_output()


def main() -> None:
    """Entry point: turns errors of the catalogue into one sentence and their exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes its own raw lines next to our sentences
    tolerate_encoding()
    try:
        with exiting_on_signals(), output_errors():
            cli(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(ConfigError.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except MoaError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort, asyncio.CancelledError):
        sys.exit(CancelledAnswerError.exit_code)


if __name__ == "__main__":
    main()
