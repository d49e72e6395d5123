"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

import os
import signal
import sys

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.entry import run_program

from moa_bench.runs.commands import compare, report, run, suite_command
from moa_bench.runs.registry import RETIRED, SUITES


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout and their tables into its docs.
    Figures depend on the machine: compare ratios within one run.
    """
    import structlog

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def _retired(name: str) -> click.Command:
    def refuse(words: tuple[str, ...]) -> None:
        raise ConfigError(f"Version 0.2.0 was the last with `moa-bench {name}`.", hint="Measure with that one.")

    anything = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name, callback=refuse, params=[anything], hidden=True, context_settings={"ignore_unknown_options": True}
    )


for command in (*map(suite_command, SUITES), run, compare, report, *map(_retired, RETIRED)):
    cli.add_command(command)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes raw lines of its own between our sentences
    signal.signal(signal.SIGTERM, _end)
    run_program(cli, "moa-bench")


def _end(number: int, frame: object) -> None:
    """Servers and links must end with us, and a result that is being written be whole: one signal is enough."""
    signal.signal(number, lambda number, frame: None)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
