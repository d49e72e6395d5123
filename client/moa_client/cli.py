"""`moa-client`: the command line. Imports nothing that a command needs, so that --help answers at once."""

import os
import sys

import click
from moa_shared.errors import CancelledAnswerError, ConfigError, MoaError
from moa_shared.programs.command_line import CONTEXT, LazyGroup, retired_command
from moa_shared.programs.entry import output_errors, prepare_process

from moa_client.chat.signals import exiting_on_signals

# Name: (where, what it does).
COMMANDS = {
    "chat": ("moa_client.commands.chat:chat", "Chat with a server's model, or print one answer."),
    "daemon": ("moa_client.commands.daemon:daemon", "Keep link, drafter and conversations in one process."),
    "servers": ("moa_client.commands.servers:servers", "Name servers, with keys, and choose among them."),
    "companion": ("moa_client.commands.companion:companion", "Choose what writes here while no server answers."),
    "doctor": ("moa_client.commands.doctor:doctor", "Examine the way to each server, and what to expect."),
    "history": ("moa_client.commands.history:history", "List, show, export, search and delete kept conversations."),
    "config": ("moa_client.commands:config", "Print each setting that is in force, and where it comes from."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="moa-split")
def cli() -> None:
    """The client of moa: drafts on this device what a server's large model will say."""


retired_command(cli, "completion", 'Run: eval "$(_MOA_CLIENT_COMPLETE=bash_source moa-client)".')


def main() -> None:
    """Entry point: turns errors of the catalogue into one sentence and their exit code."""
    prepare_process()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes its own raw lines next to our sentences
    try:
        with exiting_on_signals(), output_errors():
            code = cli(standalone_mode=False)
        if isinstance(code, int):  # what a command exits with
            sys.exit(code)
    except click.UsageError as error:
        error.show()
        sys.exit(ConfigError.exit_code)
    except MoaError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(CancelledAnswerError.exit_code)


if __name__ == "__main__":
    main()
