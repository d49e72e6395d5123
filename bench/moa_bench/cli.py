"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from moa_shared.errors import MoaError

Command = TypeVar("Command", bound=Callable[..., Any])


def common_options(command: Command) -> Command:
    """Options that every measurement has."""
    for option in (
        click.option("--quick", is_flag=True, help="Few repeats: shows that it works, not what it costs."),
        click.option(
            "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
            help="Write the results there (- for standard output) and leave the checkout's results and docs alone.",
        ),
        click.option("--model", default="default", show_default=True, help="Target: default, hub id, folder or .gguf."),
        click.option("--pin", is_flag=True, help="Pin the server to one core and everything else to another."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout and their tables into docs/bench.md.
    Figures depend on the machine: compare ratios within one run.
    """


@cli.command()
@common_options
def micro(quick: bool, json_file: Path | None, model: str, pin: bool) -> None:
    """What the parts cost: verification, draft step, first token, bytes, start-up; one thread each."""
    from moa_bench.micro.suite import run_micro

    run_micro(model=model, quick=quick, json_file=json_file, pin=pin)


@cli.command()
@common_options
@click.option("--link", "links", multiple=True, metavar="NAME", help="Only this link (may be repeated), such as 4G.")
@click.option("--acceptance", "acceptances", multiple=True, type=float, help="Only this one of the oracle, 0 to 1.")
def network(
    quick: bool, json_file: Path | None, model: str, pin: bool, links: tuple[str, ...], acceptances: tuple[float, ...]
) -> None:
    """Answers over emulated links, against plain streaming over the same link."""
    from moa_bench.link.suite import run_network

    run_network(model=model, quick=quick, json_file=json_file, pin=pin, links=links, acceptances=acceptances)


@cli.command()
@common_options
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cuts", type=click.IntRange(min=0), help="Cuts of the link.  [200]")
@click.option("--kills", type=click.IntRange(min=0), help="Kills of the server.  [50]")
def cut(
    quick: bool, json_file: Path | None, model: str, pin: bool, link: str, cuts: int | None, kills: int | None
) -> None:
    """Answers whose link is cut or reset or whose server is killed: is their text whole, how long do they stall?"""
    from moa_bench.link.cut import run_cut

    run_cut(model=model, quick=quick, json_file=json_file, pin=pin, link=link, cuts=cuts, kills=kills)


def main() -> None:
    """Entry point; one sentence and the catalogue's exit code for every error that we know."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers and links end with us
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except MoaError as error:
        print(f"moa-bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
