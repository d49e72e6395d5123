"""`moa-train`: the command line. Imports torch only when there is something to do, so that --help is quick."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.entry import run_program

if TYPE_CHECKING:
    from moa_training.teacher.rewrite import RewriteOptions

_TARGET = click.option("--target", default="default", show_default=True, help="default, hub id, folder or .gguf.")
_THREADS = click.option(
    "--threads", type=click.IntRange(0), default=1, show_default=True, help="Of torch; 0: its choice."
)
_RAY = click.option(
    "--ray", "ray_address", metavar="ADDRESS", help="Work on this Ray cluster: HOST:PORT, or local for one of its own."
)
_WORKERS = click.option(
    "--workers", type=click.IntRange(1), show_default="all that fit", help="Of the Ray cluster, --threads CPUs each."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moa-split")
def cli() -> None:
    """Train and measure drafters: prepare text, fit, evaluate."""


@cli.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="NAME.jsonl.zst")
@_TARGET
@click.option(
    "--max-tokens",
    type=click.IntRange(2),
    default=1024,
    show_default=True,
    help="Where a row is cut.",
)
@click.option("--rewrite", is_flag=True, help="The target writes its own answers; an existing shard is continued.")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=192, show_default=True, help="Longer ones are left out."
)
@click.option("--answer-tokens", type=click.IntRange(1), default=224, show_default=True, help="Where answers are cut.")
@click.option(
    "--sampled-share", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="The rest is greedy."
)
@click.option("--temperature", type=click.FloatRange(0.01), default=0.8, show_default=True, help="Of sampled answers.")
@click.option("--slots", type=click.IntRange(1), default=96, show_default=True, help="Answers written at once.")
@click.option("--limit", type=click.IntRange(1), help="The most answers written.")
@click.option(
    "--part-answers", type=click.IntRange(1), default=256, show_default=True, help="Answers of a part of the work."
)
@click.option("--seed", type=int, default=0, show_default=True)
@_THREADS
@_RAY
@_WORKERS
def prepare(
    sources: tuple[str, ...],
    output: Path,
    target: str,
    max_tokens: int,
    rewrite: bool,
    prompt_tokens: int,
    answer_tokens: int,
    sampled_share: float,
    temperature: float,
    slots: int,
    limit: int | None,
    part_answers: int,
    seed: int,
    threads: int,
    ray_address: str | None,
    workers: int | None,
) -> None:
    """Turn conversations into a token shard.

    SOURCES are files of JSON lines ({"messages": [{"role", "content"}, ...]}, perhaps .zst), or hub:OWNER/NAME.
    """
    if not output.name.endswith(".jsonl.zst"):
        raise ConfigError(f"--output is {output.name!r}: a shard's name ends in .jsonl.zst.")
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    from moa_training.data.sources import find_sources

    if ray_address is not None and not rewrite:
        raise ConfigError("--ray is for --rewrite: other text is prepared in one process.", hint="Leave out --ray.")
    progress = make_progress()
    files = resolve(target, progress=progress)
    paths = find_sources(sources, progress)
    if rewrite:
        from moa_training.cluster.on_ray import open_runner
        from moa_training.teacher.rewrite import RewriteOptions
        from moa_training.teacher.rewrite import rewrite as write_answers

        options: RewriteOptions = RewriteOptions(
            prompt_tokens,
            answer_tokens,
            sampled_share,
            temperature,
            slots,
            limit,
            seed,
            threads=threads,
            part_answers=part_answers,
        )
        with open_runner(ray_address, workers, threads, progress) as runner:
            counts = write_answers(files, paths, output, options, progress, target=target, runner=runner)
    else:
        from moa_training.data.prepare import prepare as write_shard

        counts = write_shard(files, paths, output, max_tokens, progress)
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
    from moa_shared.programs.progress import make_progress

    from moa_training.fit.fit import TrainingRun
    from moa_training.fit.run_state import only_run_in

    is_main = os.environ.get("RANK", "0") == "0"  # as torchrun numbers the processes of a run
    with only_run_in(settings.output) if is_main else nullcontext():
        run = TrainingRun(settings, make_progress())
        path = run.train()
    if run.is_main:
        click.echo(path)


@cli.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="ngrams.safetensors")
@_TARGET
@click.option("--least-count", type=click.IntRange(1), default=4, show_default=True, help="Of a context, to be kept.")
@click.option(
    "--least-chance", type=click.FloatRange(0.01, 1), default=0.1, show_default=True, help="Of a token, to be kept."
)
def ngrams(shards: tuple[Path, ...], output: Path, target: str, least_count: int, least_chance: float) -> None:
    """Count what the target usually says after its last tokens.

    SHARDS are token shards that the target wrote (prepare --rewrite), or folders of such. Drafts guess by the table
    without a step of the drafter. Put it beside drafter.safetensors.
    """
    from moa_shared.drafter.checkpoint.statistics import write_ngrams
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    from moa_training.data.shards import find_shards, read_shard
    from moa_training.fit.ngrams import NgramOptions, build_ngrams

    files = resolve(target, progress=make_progress())
    vocab_size = int(files.config["vocab_size"])
    rows = [row for path in find_shards(shards) for row in read_shard(path, files.tokenizer_hash, vocab_size)]
    arrays = build_ngrams(rows, NgramOptions(least_count, least_chance))
    write_ngrams(output, arrays, files.fingerprint)
    answers = sum(stop - start for row in rows for start, stop in row.answers)
    click.echo(
        f"{output}: {len(arrays.contexts)} contexts, {len(arrays.tokens)} tokens after them, "
        f"from {answers} tokens of answers"
    )


@cli.command()
@click.argument("checkpoint")
@click.argument("questions", type=click.Path(path_type=Path))
@_TARGET
@click.option("--limit", type=click.IntRange(1), help="Questions of each category.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
              help="Write the results there (- for standard output).")  # fmt: skip
@click.option("--card", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Put the table at the end of this model card.")  # fmt: skip
@click.option("--answer-tokens", type=click.IntRange(2), default=128, show_default=True, help="Where answers are cut.")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Longer ones are left out."
)
@click.option("--chain", type=click.IntRange(1), default=5, show_default=True, help="Drafts of the chain.")
@click.option("--nodes", type=click.IntRange(1), default=24, show_default=True, help="Of the tree.")
@click.option("--more-nodes", type=click.IntRange(1), multiple=True, help="A further size of the tree; repeatable.")
@click.option("--copies", is_flag=True, help="Trees merge what the conversation suggests (prompt look-up).")
@click.option("--depth", type=click.IntRange(1), default=5, show_default=True, help="Of the tree.")
@click.option("--breadth", type=click.IntRange(1), default=6, show_default=True, help="Of the tree.")
@click.option("--alone", type=click.IntRange(0), default=96, show_default=True, help="Standalone tokens; 0: none.")
@click.option("--unguarded", is_flag=True, help="Allow repeated 6-grams in standalone text (the client forbids them).")
@click.option("--task-tokens", type=click.IntRange(0), default=0, show_default="not checked",
              help="Check results of answers cut and continued to so many tokens; GSM8K needs 320.")  # fmt: skip
@click.option("--execution", type=click.Choice(["int8", "float32", "bf16"]), default="int8", show_default=True,
              help="The arithmetic of the target, as of moa-server.")  # fmt: skip
@click.option("--drafter-weights", type=click.Choice(["int8", "int4", "float32"]), default="int8", show_default=True,
              help="Of both halves of the drafter: as devices compute, or a reference.")  # fmt: skip
@click.option("--temperature", metavar="T|own", default="0", show_default="0: greedy",
              help="Of the target's answers; own: all settings that the model's files name.")  # fmt: skip
@_THREADS
@_RAY
@_WORKERS
def evaluate(
    checkpoint: str,
    questions: Path,
    target: str,
    limit: int | None,
    json_file: Path | None,
    card: Path | None,
    answer_tokens: int,
    prompt_tokens: int,
    chain: int,
    nodes: int,
    more_nodes: tuple[int, ...],
    copies: bool,
    depth: int,
    breadth: int,
    alone: int,
    unguarded: bool,
    task_tokens: int,
    execution: str,
    drafter_weights: str,
    temperature: str,
    threads: int,
    ray_address: str | None,
    workers: int | None,
) -> None:
    """Acceptance of CHECKPOINT on QUESTIONS: tokens per target forward, by category and by position; and
    its standalone text where the server is cut off.

    CHECKPOINT is a file, a folder with drafter.safetensors, default or deep (those that come with moa),
    a published drafter by folder or hub id, companion:MODEL (an ordinary small model of the same vocabulary, named as
    for moa-client's --companion), lookup (prompt look-up, a chain copied from the conversation) or none (plain steps).
    QUESTIONS is a file of JSON lines ({"category", "turns": [text]}), or a folder of such.
    """
    from moa_shared.drafting.dynamic_tree import TreeShape
    from moa_shared.programs.progress import make_progress

    from moa_training.cluster.on_ray import open_runner
    from moa_training.evaluation.evaluation import evaluate as measure
    from moa_training.evaluation.measuring.job import EvaluationOptions
    from moa_training.evaluation.results import format_table

    options = EvaluationOptions(
        target=target,
        limit=limit,
        answer_tokens=answer_tokens,
        chain=chain,
        tree=TreeShape(depth, breadth, nodes),
        more_nodes=more_nodes,
        copies=copies,
        longest_prompt=prompt_tokens,
        threads=threads,
        standalone_tokens=alone,
        task_tokens=task_tokens,
        guarded=not unguarded,
        execution=execution,
        drafter_weights=drafter_weights,
        temperature=temperature,
    )
    progress = make_progress()
    with open_runner(ray_address, workers, threads, progress) as runner:
        result = measure(checkpoint, questions, options, progress, runner)
    text = json.dumps(result.to_json(), indent=1)
    if card is not None:
        from moa_training.fit.card import add_acceptance

        shape = f"--chain {chain} --nodes {nodes} --depth {depth} --breadth {breadth}{' --copies' if copies else ''}"
        limits = (
            f"--answer-tokens {answer_tokens} --prompt-tokens {prompt_tokens}{f' --limit {limit}' if limit else ''}"
            f"{' --unguarded' if unguarded else ''}"
            f"{f' --execution {execution}' if execution != 'int8' else ''}"
            f"{f' --drafter-weights {drafter_weights}' if drafter_weights != 'int8' else ''}"
            f"{f' --temperature {temperature}' if temperature != '0' else ''}"
        )
        add_acceptance(card, format_table(result), f"moa-train evaluate {checkpoint} QUESTIONS {shape} {limits}")
    if json_file is not None and str(json_file) == "-":
        click.echo(text)
        return
    click.echo(format_table(result))
    if json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")


@cli.command()
@click.argument("checkpoint")
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="confidence.json; of a companion by "
              "default a file of the cache, where this machine finds it.")  # fmt: skip
@_TARGET
@click.option("--limit", type=click.IntRange(1), help="Questions of each category.")
@click.option("--answer-tokens", type=click.IntRange(2), default=128, show_default=True, help="Where answers are cut.")
@click.option("--execution", type=click.Choice(["int8", "float32", "bf16"]), default="int8", show_default=True,
              help="The arithmetic of the target, as of moa-server.")  # fmt: skip
@click.option("--temperature", metavar="T|own", default="own", show_default=True,
              help="Of the target's answers, 0 for greedy ones; own: all settings that the model's files name, as of "
              "chats.")  # fmt: skip
@click.option("--thin", is_flag=True, help="With the few memory rows that a device gets while it drafts nothing.")
def calibrate(
    checkpoint: str,
    questions: Path,
    output: Path | None,
    target: str,
    limit: int | None,
    answer_tokens: int,
    execution: str,
    temperature: str,
    thin: bool,
) -> None:
    """Measure how far the standalone text of CHECKPOINT can be trusted, on QUESTIONS that training has not seen.

    Put the file beside drafter.safetensors, or beside the companion's: devices then know when to stop writing without
    the server. CHECKPOINT and QUESTIONS are as for evaluate.
    """
    from moa_shared.drafter.checkpoint.statistics import write_confidence
    from moa_shared.drafter.companion.records import cache_file
    from moa_shared.drafter.companion.records import write_confidence as write_learned
    from moa_shared.drafting.confidence import Confidence
    from moa_shared.models.sources.cache import cache_root
    from moa_shared.programs.progress import make_progress

    from moa_training.evaluation.calibrate import CalibrationOptions
    from moa_training.evaluation.calibrate import calibrate as measure
    from moa_training.evaluation.companion_subject import PREFIX
    from moa_training.evaluation.confidence import format_gates

    if output is None and not checkpoint.startswith(PREFIX):
        raise ConfigError("--output is missing: where to write confidence.json.", hint="Put it beside the checkpoint.")
    result = measure(
        checkpoint,
        questions,
        CalibrationOptions(target, limit, answer_tokens, execution, thin, temperature),
        make_progress(),
    )
    output = output or cache_file(result.fingerprint, result.target, cache_root())
    if isinstance(result.confidence, Confidence):
        write_confidence(output, result.confidence, result.fingerprint)
    else:
        write_learned(output, result.confidence, result.fingerprint, result.target)
    click.echo(f"{output}: from {result.cuts} cuts of {result.questions} answers. On every other one of them:")
    click.echo(format_gates(result.gates))


@cli.command()
@click.argument("results", nargs=-1, required=True, metavar="NAME=FILE...")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Standalone quality, as a PNG.")
@click.option(
    "--share-picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Standalone quality by the share of the answer that the server gave, as a PNG.",
)
@click.option(
    "--forward-ms", type=click.FloatRange(0.001), default=49.0, show_default=True, help="Of a target forward."
)
@click.option("--node-ms", type=click.FloatRange(0), default=0.85, show_default=True, help="Of each draft node in it.")
def compare(
    results: tuple[str, ...], picture: Path | None, share_picture: Path | None, forward_ms: float, node_ms: float
) -> None:
    """Put evaluations (evaluate --json) side by side, as tables and as pictures."""
    from moa_training.evaluation.comparison import acceptance_table, draw_standalone, read_evaluation, standalone_table
    from moa_training.evaluation.share_comparison import draw_shares, share_table, task_table

    evaluations = {}
    for result in results:
        name, separator, file = result.partition("=")
        if not separator:
            raise ConfigError(
                f"{result!r} is not of the form NAME=FILE.", hint="Name each evaluation, such as eagle2=eagle2.json."
            )
        evaluations[name] = read_evaluation(Path(file))
    click.echo(acceptance_table(evaluations, forward_ms, node_ms))
    click.echo("")
    click.echo(standalone_table(evaluations))
    for table in (share_table(evaluations), task_table(evaluations)):
        if table:
            click.echo(f"\n{table}")
    if picture is not None:
        draw_standalone(evaluations, picture)
    if share_picture is not None:
        draw_shares(evaluations, share_picture)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    run_program(cli, "moa-train")


if __name__ == "__main__":
    main()
