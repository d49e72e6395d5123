"""The commands: one for each suite, made of its effort, and `run`, `compare` and `report`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from moa_bench.options import options_of, with_given
from moa_bench.suite import Suite, SuiteInputs

RUN_TAKES = ("model", "level", "questions", "drafters", "traces", "llama_cpp")
json_option = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
    help="Write the results there (- for standard output) instead of into the checkout's results and docs.",
)  # fmt: skip


def suite_command(suite: Suite[Any]) -> click.Command:
    """`moa-bench SUITE`: its options are those of the fields of its effort, and of the inputs that it takes."""

    def measure(json_file: Path | None, quick: bool = False, **flags: Any) -> None:
        effort = with_given(suite.effort(quick=quick), flags)
        inputs = with_given(SuiteInputs(), flags)
        refuse_shape(inputs)
        suite.refuse(effort, inputs)
        from moa_shared.programs.progress import make_progress

        from moa_bench.runs.execute import duration, run_suite

        make_progress().note(f"This takes about {duration(suite.seconds(effort, inputs))}.")
        run_suite(suite, effort, inputs, quick=quick, json_file=json_file)

    measure = options_of(type(suite.full))(measure)
    measure = options_of(SuiteInputs, suite.takes)(measure)
    measure = json_option(measure)
    if suite.quick is not None:
        measure = click.option("--quick", is_flag=True, help="Shows that it works, not what it costs.")(measure)
    return click.command(suite.name, help=suite.about)(measure)


def refuse_shape(inputs: SuiteInputs) -> None:
    """Raises UsageError where a shape and other options contradict each other."""
    if inputs.shape is None and inputs.stored is not None:
        raise click.UsageError("--format needs --shape.")
    if inputs.shape is not None and inputs.model != "default":
        raise click.UsageError("--shape makes a model of its own: leave --model out.")


@click.command()
@click.argument("suites", nargs=-1, required=True, metavar="SUITE...")
@click.option("--quick", is_flag=True, help="Shows that it works; publishes nothing in the checkout.")
@click.option(
    "--pin/--no-pin", default=None, help="A core for the server, another for the rest.  [where there are two]"
)
@options_of(SuiteInputs, RUN_TAKES)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Write results and journals there instead of into the checkout.",
)  # fmt: skip
@click.option("--afresh", is_flag=True, help="Begin again instead of continuing a run that was stopped.")
def run(suites: tuple[str, ...], quick: bool, pin: bool | None, out: Path | None, afresh: bool, **flags: Any) -> None:
    """Run suites in turn: single, network, cut, capacity, sizes, scale, or all;
    or parts of these, like single-8b.

    Started again after a kill or Ctrl-C, with the same options, it continues.
    """
    from moa_bench.runs import registry
    from moa_bench.runs.run import RunRequest, journal_folder, run_parts

    parts = registry.choose_parts(registry.CHAPTERS, suites)
    inputs = with_given(SuiteInputs(), flags)
    inputs = replace(inputs, pin=len(os.sched_getaffinity(0)) >= 2 if pin is None else pin)
    run_parts("-".join(suites), parts, RunRequest(inputs, quick, out, journal_folder(out), afresh))


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def compare(a: Path, b: Path) -> None:
    """Compare two results of one suite, or two folders of results: what both measured, and B over A."""
    from moa_bench.runs.compare import compare_paths

    click.echo(compare_paths(a, b), nl=False)


@click.command()
def report() -> None:
    """Write what the results of all sizes say together into docs/measurements/index.md."""
    from moa_shared.errors import ConfigError

    from moa_bench.report.report import checkout_root, replace_section
    from moa_bench.runs.page import PAGE, sections_of

    root = checkout_root()
    if root is None:
        raise ConfigError(
            "Results and pages are in a checkout, and this is none.", hint="Clone moa; install it with make."
        )
    docs = root / "docs"
    for section, text in sections_of(root / "bench" / "results").items():
        replace_section(docs / PAGE, section, text)
    click.echo(docs / PAGE)
