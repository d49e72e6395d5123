"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import retired_command, settings_options
from moa_shared.programs.config import settings_of
from moa_shared.programs.entry import run_program

from moa_bench import registry
from moa_bench.suite import Suite, SuiteInputs, with_given


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout.
    Figures depend on the machine: compare ratios within one run.
    """
    import structlog

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def suite_command(suite: Suite[Any]) -> click.Command:
    """`moa-bench SUITE`."""

    def measure(json_file: Path | None, quick: bool, **flags: Any) -> None:
        effort = with_given(suite.quick if quick else suite.full, flags)
        inputs = with_given(SuiteInputs(), flags)
        if inputs.shape is not None and inputs.model != "default":
            raise click.UsageError("--shape makes a model of its own: leave --model out.")
        suite.refuse(effort, inputs)
        from moa_bench.run import run_suite

        run_suite(suite, effort, inputs, quick=quick, json_file=json_file)

    measure = settings_options(type(suite.full))(measure)
    unused = [name for name in settings_of(SuiteInputs) if name not in suite.takes]
    measure = settings_options(SuiteInputs, without=unused)(measure)
    measure = click.option(
        "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
        help="Write the results there (- for standard output) instead of into the checkout's results.",
    )(measure)  # fmt: skip
    measure = click.option("--quick", is_flag=True, help="Shows that it works, not what it costs.")(measure)
    return click.command(suite.name, help=suite.about)(measure)


@cli.command()
@click.argument("suites", nargs=-1, required=True, metavar="SUITE...")
@click.option("--quick", is_flag=True, help="Shows that it works; publishes nothing in the checkout.")
@settings_options(SuiteInputs, without=["shape"])
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Write results and journals there instead of into the checkout.",
)  # fmt: skip
@click.option("--afresh", is_flag=True, help="Begin again instead of continuing a run that was stopped.")
def run(suites: tuple[str, ...], quick: bool, out: Path | None, afresh: bool, **flags: Any) -> None:
    """Run suites in turn: single, network, cut, capacity, sizes, scale, or all;
    or parts of these, like single-8b.

    Started again after a kill or Ctrl-C, with the same options, it continues. It pins where there are two cores.
    """
    from moa_bench.run import RunRequest, run_parts

    parts = registry.choose_parts(registry.CHAPTERS, suites)
    inputs = with_given(SuiteInputs(pin=len(os.sched_getaffinity(0)) >= 2), flags)
    run_parts("-".join(suites), parts, RunRequest(inputs, quick, out, afresh))


@cli.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def compare(a: Path, b: Path) -> None:
    """Compare two results of one suite, or two folders of results: what both measured, and B over A."""
    from moa_bench.results import compare_paths

    click.echo(compare_paths(a, b), nl=False)


@cli.command()
def report() -> None:
    """Write what the results of all targets say together into docs/measurements/index.md."""
    from moa_bench.report import checkout_root, with_section, write_text
    from moa_bench.results import PAGE, TARGETS, targets_section

    root = checkout_root()
    if root is None:
        raise ConfigError(
            "Results and pages are in a checkout, and this is none.", hint="Clone moa; install it with make."
        )
    page = root / "docs" / PAGE
    write_text(page, with_section(page, TARGETS, targets_section(root / "bench" / "results")))
    click.echo(page)


for suite in registry.SUITES:
    cli.add_command(suite_command(suite))
for name, hint in registry.RETIRED.items():
    retired_command(cli, name, hint)


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
