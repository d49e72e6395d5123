"""`moa-bench alone`: quality against the share of the answer that was served, for each drafter and for none.

Measured by `moa-train evaluate`, which takes the server away at each tenth of the target's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from moa_shared.drafter.checkpoint.shipped import DEEP_DRAFTER, DEFAULT_DRAFTER
from moa_shared.errors import NotFoundError
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.report.experiment import Experiment
from moa_bench.report.journal import Keep, measure_afresh
from moa_bench.report.report import ALONE, facts_line

SHIPPED = {"MoA, N = 3, shipped": DEFAULT_DRAFTER, "MoA, N = 12, shipped": DEEP_DRAFTER, "prompt look-up": "lookup"}
CATEGORIES = 7  # of the questions that are usually asked
QUESTION_S = 20.0  # of one drafter, with its task's result


@dataclass(frozen=True, slots=True)
class AloneEffort:
    """How much to measure.

    Args:
        questions: of each category.
        answer_tokens: of an answer, at most.
        longest_prompt: questions with more tokens are not asked.
        alone_tokens: written after each cut.
        task_tokens: of an answer whose result is checked; 0: none is.
    """

    questions: int = 2
    answer_tokens: int = 128
    longest_prompt: int = 512
    alone_tokens: int = 96
    task_tokens: int = 192


QUICK = AloneEffort(1, 16, 128, 8, 0)


def estimate_s(effort: AloneEffort, drafters: int = len(SHIPPED)) -> float:
    """About how many seconds it takes with the default model."""
    return drafters * CATEGORIES * effort.questions * QUESTION_S * effort.answer_tokens / AloneEffort().answer_tokens


def run_alone(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    drafters: Mapping[str, Path],
    questions: Path | None,
) -> None:
    """Measure and report.

    Args:
        drafters: further checkpoints by name.
        questions: a file or folder of questions.

    Raises:
        MoaError: there are no questions, or a drafter cannot be used.
    """
    effort, asked = QUICK if quick else AloneEffort(), _given(questions)
    experiment = Experiment("alone", quick=quick, json_file=json_file, pin=pin)
    make_progress().note(f"This takes about {estimate_s(effort, len(SHIPPED | dict(drafters))) / 60:.0f} minutes.")
    cores = experiment.server_cores, experiment.own_cores
    experiment.result |= measure(
        effort, measure_afresh, model=model, level=level, drafters=drafters, questions=asked, cores=cores
    )
    experiment.publish(render(experiment.result), page=ALONE)
    if (picture := experiment.picture_path("alone")) is not None:
        for path in draw(experiment.result, picture.parent):
            click.echo(path)


def measure(
    effort: AloneEffort,
    keep: Keep,
    *,
    model: str = "default",
    level: str = INT8,
    drafters: Mapping[str, Path] | None = None,
    questions: Path | None = None,
    cores: tuple[set[int] | None, set[int] | None] = (None, None),
) -> dict[str, Any]:
    """One evaluation for each drafter, on the same questions and cuts.

    Args:
        keep: takes a drafter's name, and what evaluates it.
        cores: the first are used; None: any.

    Raises:
        MoaError: as `run_alone`.
    """
    from moa_training.evaluation.measuring.job import EvaluationOptions

    options = EvaluationOptions(
        target=model,
        limit=effort.questions,
        answer_tokens=effort.answer_tokens,
        longest_prompt=effort.longest_prompt,
        execution=level,
        standalone_tokens=effort.alone_tokens,
        task_tokens=effort.task_tokens,
    )
    asked = _given(questions)
    named = SHIPPED | {name: str(path) for name, path in (drafters or {}).items()}
    with ExitStack() as stack:
        stack.enter_context(on_cores(cores[0]))
        evaluations = {
            name: keep(name, partial(evaluate_one, checkpoint, asked, options)) for name, checkpoint in named.items()
        }
    target = next(iter(evaluations.values()))["target"]
    return {"target": target, "level": level, "effort": asdict(effort), "evaluations": evaluations}


def _given(questions: Path | None) -> Path:
    if questions is None:
        raise NotFoundError("There are no questions to answer.", hint="Name a file or a folder: --questions PATH.")
    return questions


def evaluate_one(checkpoint: str, questions: Path, options: Any) -> dict[str, Any]:
    """What `moa-train evaluate --json` writes of a checkpoint.

    Raises:
        MoaError: it cannot be used, or there are no questions.
    """
    from moa_training.evaluation.evaluation import evaluate

    result: dict[str, Any] = evaluate(checkpoint, questions, options, make_progress()).to_json()
    return result


def render(result: Mapping[str, Any]) -> str:
    """Tables by the share that was served: closeness to the target, and results of tasks."""
    from moa_training.evaluation.share_comparison import share_table, task_table

    evaluations = result["evaluations"]
    count = next(iter(evaluations.values()))["questions"]
    effort = result["effort"]
    what = (
        f"{count} questions on the level {result['level']}, answers of at most {effort['answer_tokens']} tokens, each "
        f"taken from the server at every tenth; the device then writes {effort['alone_tokens']} tokens. An API client "
        "has what was served, and no more."
    )
    tables = [share_table(evaluations), task_table(evaluations)]
    heads = ["### Text", "### Results of tasks"]
    parts = [f"{head}\n\n{table}\n" for head, table in zip(heads, tables, strict=True) if table]
    return "\n".join([facts_line(result), what + "\n", *parts])


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws quality over the share that was served; raises ConfigError where matplotlib is missing."""
    from moa_training.evaluation.share_comparison import draw_shares

    path = folder / "alone.png"
    draw_shares(result["evaluations"], path)
    return [path]
