"""`moa-bench run`, `compare` and `report`: the options; what they do is loaded when it begins."""

from __future__ import annotations

import os
from pathlib import Path

import click
from moa_shared.protocol.levels import LEVELS


def named_path(given: str) -> tuple[str, Path]:
    """A drafter to measure, as `--drafter` names it; the name may have an equals sign, such as "MoA, N = 0".

    Raises:
        UsageError: it has no name, or no path.
    """
    name, equals, path = given.rpartition("=")
    if not (name and equals and path):
        raise click.UsageError(f"--drafter {given} is not NAME=PATH or NAME=ID.")
    return name, Path(path)


traces_option = click.option(
    "--trace", "traces", multiple=True, metavar="LINK=FILE",
    help="Measure over this recorded link too, with that link's delay where the recording has none (repeat).",
)  # fmt: skip


@click.command()
@click.argument("suites", nargs=-1, required=True, metavar="SUITE...")
@click.option("--quick", is_flag=True, help="Shows that it works; publishes nothing in the checkout.")
@click.option(
    "--pin/--no-pin", default=None, help="A core for the server, another for the rest.  [where there are two]"
)
@click.option("--model", default="default", show_default=True, help="Target: default, hub id, folder or .gguf.")
@click.option("--level", type=click.Choice(LEVELS), default="int8", show_default=True, help="Arithmetic of the target.")
@click.option(
    "--questions", type=click.Path(path_type=Path), metavar="PATH",
    help="Ask these: JSON lines, or a folder of such files.  [../shared/data/eval of the checkout, else own ones]",
)  # fmt: skip
@click.option(
    "--drafter", "drafters", multiple=True, metavar="NAME=PATH|ID",
    help="Measure this checkpoint too, in suites that compare drafters (repeat).",
)  # fmt: skip
@traces_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Write results, pictures and journals there instead of into the checkout.",
)  # fmt: skip
@click.option("--afresh", is_flag=True, help="Begin again instead of continuing a run that was stopped.")
def run(
    suites: tuple[str, ...],
    quick: bool,
    pin: bool | None,
    model: str,
    level: str,
    questions: Path | None,
    drafters: tuple[str, ...],
    traces: tuple[str, ...],
    out: Path | None,
    afresh: bool,
) -> None:
    """Run suites, one after the other: single, network, cut, capacity, scale, micro, hostile, codecs, memory, or all.

    Started again after a kill or Ctrl-C, with the same options, it continues.
    """
    from moa_bench.runs.registry import SUITES
    from moa_bench.runs.run import default_questions, journal_folder, run_parts
    from moa_bench.runs.suites import Request, choose_parts

    parts = choose_parts(SUITES, suites)
    request = Request(
        model=model,
        level=level,
        pin=len(os.sched_getaffinity(0)) >= 2 if pin is None else pin,
        quick=quick,
        questions=questions or default_questions(),
        out=out,
        journals=journal_folder(out),
        afresh=afresh,
        drafters=dict(map(named_path, drafters)),
        traces=traces,
    )
    run_parts("-".join(suites), parts, request)


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def compare(a: Path, b: Path) -> None:
    """Compare two results of one suite, or two folders of results: what both measured, and B over A."""
    from moa_bench.runs.compare import compare_paths

    click.echo(compare_paths(a, b), nl=False)


@click.command()
@click.option("--mixed", is_flag=True, help="Take results of several commits or machines, and mark each table.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
    help="Write the page there (- for standard output) instead of to docs/results.md.",
)  # fmt: skip
def report(mixed: bool, out: Path | None) -> None:
    """Write docs/results.md, whole, from the results in the checkout."""
    from moa_shared.errors import ConfigError

    from moa_bench.report.report import checkout_root, write_text
    from moa_bench.runs.registry import SUITES
    from moa_bench.runs.report import build_page

    root = checkout_root()
    if root is None:
        raise ConfigError(
            "Results and pages are in a checkout, and this is none.", hint="Clone moa; install it with make."
        )
    page = build_page(SUITES, root / "bench" / "results", root / "docs", mixed=mixed)
    if str(out) == "-":
        click.echo(page, nl=False)
        return
    written = out or root / "docs" / "results.md"
    write_text(written, page)
    click.echo(written)
