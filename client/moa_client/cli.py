"""`moa-client`: the command line. Imports nothing heavy, so that --help answers at once."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import CancelledAnswerError, ConfigError, MoaError
from moa_shared.programs.config import load_settings
from moa_shared.programs.cores import parse_cores, pin_to_cores
from moa_shared.programs.output import close_output, output_errors, tolerate_encoding
from moa_shared.programs.run_loop import make_runner

from moa_client.chat.signals import exiting_on_signals
from moa_client.chat.start_line import StartLine
from moa_client.settings import SECTION, ClientSettings

MANY_CORES = 4  # with so many, a drafter may take two


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="moa")
def cli() -> None:
    """The client of moa: drafts on this device what a server's large model will say."""


@cli.command()
@click.argument("prompt", required=False)
@click.option("--server", metavar="HOST:PORT", help="Where moa-server listens.  [127.0.0.1:50051]")
@click.option(
    "--model",
    metavar="default|ID|PATH",
    help="The server's model: 'default', hub id, folder or .gguf.  [what is needed is fetched]",
)
@click.option(
    "--drafter",
    metavar="auto|default|deep|lookup|random|none|PATH",
    help="auto: the fastest here; default: the server's first; PATH: of a checkpoint.  [auto]",
)
@click.option(
    "--drafting", metavar="streamed|rounds", help="Without waiting, or a draft after each verdict.  [streamed]"
)
@click.option("--run-ahead", metavar="on|off", type=bool, help="The server goes on when no draft has come.  [on]")
@click.option(
    "--reconcile", metavar="verify|keep", help="What becomes of what was written without the server.  [verify]"
)
@click.option("--offline", is_flag=True, default=None, help="Begin without the server; /online connects.")
@click.option("--json", "json_events", is_flag=True, default=None, help="Events as lines of JSON (docs/client.md).")
@click.option("--mode", metavar="chain|tree", help="What to draft.  [tree]")
@click.option("--length", type=int, help="Tokens of a chain.  [5]")
@click.option("--depth", type=int, help="Levels of a tree.  [4]")
@click.option("--breadth", type=int, help="Candidates of a node, and nodes expanded a level.  [4]")
@click.option("--nodes", type=int, help="Nodes of a tree that are sent.  [16]")
@click.option("--temperature", type=float, help="0 is greedy.  [0]")
@click.option("--top-k", type=int, help="Keep the k likeliest tokens; 0 keeps all.  [0]")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability.  [1]")
@click.option("--seed", type=int, help="The same seed gives the same text, but for bf16 servers.  [0]")
@click.option("--max-tokens", type=int, help="Of one answer; 0: as the context allows.  [512]")
@click.option("--stop", multiple=True, help="A string that ends the answer (may be repeated).")
@click.option("--system", help="System prompt.  [the model's own]")
@click.option("--codec", metavar="bf16|int8|int4", help="Of the memory.  [int4]")
@click.option("--dtype", metavar="int8|float32", help="Of the drafter's weights.  [int8]")
@click.option("--copies", metavar="on|off", type=bool, help="Merge what the conversation suggests into drafts.  [on]")
@click.option("--parts", metavar="packed|bf16", help="How to fetch parts of the target.  [packed]")
@click.option("--threads", type=int, help="Of the drafter; 0: two of four cores or more, else one.  [0]")
@click.option("--cores", metavar="LIST", help="That the program keeps to, such as 0,2-3.  [any]")
@click.option("--connect-seconds", type=float, help="How long to wait for the server.  [5]")
@click.option("--silence-seconds", type=float, help="An answer without progress for so long goes on alone.  [60]")
@click.option("--settle-seconds", type=float, help="How long one answer waits to be verified after a cut.  [10]")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where models are kept.  [MOA_CACHE_DIR]")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with a table [client].  [MOA_CONFIG]")
def chat(prompt: str | None, config: Path | None, **flags: Any) -> None:
    """Chat with a server's model; with PROMPT, or a prompt on standard input, print one answer.

    The answer goes to standard output, a line of figures to standard error. Every option can also be set as
    MOA_CLIENT_<OPTION> in the environment, or in the [client] table of a TOML file.
    """
    settings = load_settings(ClientSettings, SECTION, flags, config)
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
