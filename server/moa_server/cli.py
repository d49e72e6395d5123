"""`moa-server`: the command line. Imports nothing that a command needs, so that --help answers at once."""

import os
import sys

import click
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import CONTEXT, LazyGroup, retired_command
from moa_shared.programs.entry import output_errors, prepare_process

# Name: (where, what it does).
COMMANDS = {
    name: (f"moa_server.commands.{module}:{name}", text)
    for name, module, text in (
        ("serve", "serve", "Serve a model."),
        ("fetch", "models", "Fetch and convert a model now, so that serving starts from the cache."),
        ("models", "models", "List the models here, with size, format, family and whether they are served."),
        ("drafters", "models", "List the drafters for a model: on this machine, and published ones that are known."),
        ("pull", "models", "Fetch a model from the hub, a GGUF file of it if there are several."),
        ("cluster", "cluster", "Run replicas of the server on a Ray cluster."),
        ("keys", "setup", "Make, list and revoke the API keys of a server's users."),
        ("setup", "setup", "Make certificate, key and settings for a server that others reach."),
        ("invite", "setup", "Invite another device."),
        ("doctor", "doctor", "Examine what a server would meet on this machine."),
        ("capacity", "doctor", "Say how many sessions of which length fit into a budget of memory."),
        ("config", "doctor", "Print each setting that is in force, and where it comes from."),
    )
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="moa-split")
def cli() -> None:
    """The server of split inference: runs the target, verifies what clients draft."""


retired_command(cli, "cache", "Remove what the cache folder holds, as you like: it is made again when it is needed.")
retired_command(cli, "completion", 'Run: eval "$(_MOA_SERVER_COMPLETE=bash_source moa-server)".')


def main() -> None:
    """Entry point: an error of the catalogue becomes one line on standard error and its exit code."""
    prepare_process()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes raw lines of its own between our sentences
    try:
        with output_errors():
            cli()
    except MoaError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
