"""`moa-train`: the command line. Imports torch only when there is something to do, so that --help is quick."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import run_program

from moa_training.settings import CalibrationOptions, CompareOptions, EvaluationOptions, NgramOptions, PrepareOptions

if TYPE_CHECKING:
    from moa_shared.programs.progress import Progress

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


def _progress() -> Progress:
    from moa_shared.programs.progress import make_progress

    return make_progress()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moa-split")
def cli() -> None:
    """Train and measure drafters: prepare text, fit, evaluate."""


@cli.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--output", type=_OUTPUT, required=True, help="NAME.jsonl.zst")
@settings_options(PrepareOptions)
def prepare(sources: tuple[str, ...], output: Path, **flags: Any) -> None:
    """Turn conversations into a token shard.

    SOURCES are files of JSON lines ({"messages": [{"role", "content"}, ...]}, perhaps .zst), or hub:OWNER/NAME.
    """
    options = load_settings(PrepareOptions, "prepare", flags, environment={})
    if not output.name.endswith(".jsonl.zst"):
        raise ConfigError(f"--output is {output.name!r}: a shard's name ends in .jsonl.zst.")
    from moa_shared.models import resolve

    from moa_training.data.text import find_sources
    from moa_training.data.text import prepare as write_shard

    progress = _progress()
    files = resolve(options.target, progress=progress)
    paths = find_sources(sources, progress)
    if options.rewrite:
        from moa_training.teacher.teacher import rewrite

        counts = rewrite(files, paths, output, options, progress)
    else:
        counts = write_shard(files, paths, output, options.max_tokens, progress)
    click.echo(f"{output}: {counts}")


@cli.command()
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
def fit(config: Path) -> None:
    """Train a drafter as CONFIG (TOML or YAML) says; started again, it continues from its last checkpoint.

    For several GPUs start it with `accelerate launch -m moa_training.cli fit CONFIG`, for several processes on a CPU
    with `ACCELERATE_USE_CPU=1 torchrun --nproc_per_node N -m moa_training.cli fit CONFIG`; docs/drafters.md has
    several machines.
    """
    from moa_training.settings import load_fit_settings

    settings = load_fit_settings(config)
    from moa_training.fit.fit import TrainingRun
    from moa_training.fit.run_state import only_run_in

    is_main = os.environ.get("RANK", "0") == "0"  # as torchrun numbers the processes of a run
    with only_run_in(settings.output) if is_main else nullcontext():
        run = TrainingRun(settings, _progress())
        path = run.train()
    if run.is_main:
        click.echo(path)


@cli.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=_OUTPUT, required=True, help="ngrams.safetensors")
@settings_options(NgramOptions)
def ngrams(shards: tuple[Path, ...], output: Path, **flags: Any) -> None:
    """Count what the target usually says after its last tokens.

    SHARDS are token shards that the target wrote (prepare --rewrite), or folders of such. Drafts guess by the table
    without a step of the drafter. Put it beside drafter.safetensors.
    """
    options = load_settings(NgramOptions, "ngrams", flags, environment={})
    from moa_shared.drafter.checkpoint import write_ngrams
    from moa_shared.models import resolve

    from moa_training.data.shards import find_shards, read_shard
    from moa_training.fit.ngrams import build_ngrams

    files = resolve(options.target, progress=_progress())
    vocab_size = int(files.config["vocab_size"])
    rows = [row for path in find_shards(shards) for row in read_shard(path, files.tokenizer_hash, vocab_size)]
    arrays = build_ngrams(rows, options)
    write_ngrams(output, arrays, files.fingerprint)
    answers = sum(stop - start for row in rows for start, stop in row.answers)
    click.echo(
        f"{output}: {len(arrays['contexts'])} contexts, {len(arrays['tokens'])} tokens after them, "
        f"from {answers} tokens of answers"
    )


@cli.command()
@click.argument("checkpoint")
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
              help="Write the results there (- for standard output).")  # fmt: skip
@settings_options(EvaluationOptions)
def evaluate(checkpoint: str, questions: Path, json_file: Path | None, **flags: Any) -> None:
    """Acceptance of CHECKPOINT on QUESTIONS: tokens per target forward, by category and by position; and
    its standalone text where the server is cut off.

    CHECKPOINT is a file, a folder with drafter.safetensors, default or deep (those that come with moa),
    a published drafter by folder or hub id, companion:MODEL (an ordinary small model of the same vocabulary, named as
    for moa-client's --companion), lookup (prompt look-up, a chain copied from the conversation) or none (plain steps).
    QUESTIONS is a file of JSON lines ({"category", "turns": [text]}), or a folder of such.
    """
    options = load_settings(EvaluationOptions, "evaluate", flags, environment={})
    from moa_training.evaluation.evaluation import evaluate as measure
    from moa_training.report import evaluation_text

    result = measure(checkpoint, questions, options, _progress())
    text = json.dumps(result, indent=1)
    if json_file is not None and str(json_file) == "-":
        click.echo(text)
        return
    click.echo(evaluation_text(result))
    if json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")


@cli.command()
@click.argument("checkpoint")
@click.argument("questions", type=click.Path(path_type=Path))
@settings_options(CalibrationOptions)
def calibrate(checkpoint: str, questions: Path, **flags: Any) -> None:
    """Measure how far the standalone text of CHECKPOINT can be trusted, on QUESTIONS that training has not seen.

    Put the file beside drafter.safetensors, or beside the companion's: devices then know when to stop writing without
    the server. CHECKPOINT and QUESTIONS are as for evaluate.
    """
    options = load_settings(CalibrationOptions, "calibrate", flags, environment={})
    from moa_shared.drafter.checkpoint import write_confidence
    from moa_shared.drafter.companion import cache_file
    from moa_shared.drafter.companion import write_confidence as write_learned
    from moa_shared.drafting.estimates import Confidence
    from moa_shared.models.storage.cache import cache_root

    from moa_training.evaluation.calibrate import calibrate as measure
    from moa_training.evaluation.calibrate import format_gates
    from moa_training.evaluation.evaluation import PREFIX

    if options.output is None and not checkpoint.startswith(PREFIX):
        raise ConfigError("--output is missing: where to write confidence.json.", hint="Put it beside the checkpoint.")
    result = measure(checkpoint, questions, options, _progress())
    output = options.output or cache_file(result.fingerprint, result.target, cache_root())
    if isinstance(result.confidence, Confidence):
        write_confidence(output, result.confidence, result.fingerprint)
    else:
        write_learned(output, result.confidence, result.fingerprint, result.target)
    click.echo(f"{output}: from {result.cuts} cuts of {result.questions} answers. On every other one of them:")
    click.echo(format_gates(result.gates))


@cli.command()
@click.argument("results", nargs=-1, required=True, metavar="NAME=FILE...")
@settings_options(CompareOptions)
def compare(results: tuple[str, ...], **flags: Any) -> None:
    """Put evaluations (evaluate --json) side by side, as tables and as a picture."""
    options = load_settings(CompareOptions, "compare", flags, environment={})
    from moa_training.report import acceptance_table, draw_shares, read_evaluation, task_table, text_table

    evaluations = {}
    for result in results:
        name, separator, file = result.partition("=")
        if not separator:
            raise ConfigError(
                f"{result!r} is not of the form NAME=FILE.", hint="Name each evaluation, such as eagle2=eagle2.json."
            )
        evaluations[name] = read_evaluation(Path(file))
    acceptance = acceptance_table(evaluations, options.forward_ms, options.node_ms)
    click.echo("\n\n".join(filter(None, (acceptance, text_table(evaluations), task_table(evaluations)))))
    if options.picture is not None:
        draw_shares(evaluations, options.picture)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    run_program(cli, "moa-train")


if __name__ == "__main__":
    main()
