"""One evaluation for each drafter, on the same questions and cuts.

Measured by `moa-train evaluate`, which takes the server away at each tenth of the target's answer.
"""

from functools import partial
from pathlib import Path
from typing import Any, cast

from moa_shared.drafter.checkpoint.shipped import DEEP_DRAFTER, DEFAULT_DRAFTER
from moa_shared.programs.progress import make_progress
from moa_training.evaluation.evaluation import evaluate
from moa_training.options import EvaluationOptions, Execution

from moa_bench.harness.cores import on_cores
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.alone import AloneEffort

SHIPPED = {"MoA, N = 3, shipped": DEFAULT_DRAFTER, "MoA, N = 12, shipped": DEEP_DRAFTER, "prompt look-up": "lookup"}


def measure(effort: AloneEffort, run: SuiteRun) -> Result:
    """The evaluations, on the server's core; each is a cell.

    Raises:
        MoaError: the questions or a drafter cannot be used.
    """
    options = EvaluationOptions(
        target=run.model,
        limit=effort.questions,
        answer_tokens=effort.answer_tokens,
        prompt_tokens=effort.longest_prompt,
        execution=cast(Execution, run.level),
        alone=effort.alone_tokens,
        task_tokens=effort.task_tokens,
        temperature=effort.temperature,
    )
    named = SHIPPED | {name: str(path) for name, path in run.drafters.items()}
    with on_cores(run.server_cores):
        evaluations = {
            name: run.keep(name, partial(evaluate_one, checkpoint, run.questions, options))
            for name, checkpoint in named.items()
        }
    return {"target": next(iter(evaluations.values()))["target"], "evaluations": evaluations}


def evaluate_one(checkpoint: str, questions: Path, options: EvaluationOptions) -> dict[str, Any]:
    """What `moa-train evaluate --json` writes of a checkpoint."""
    result: dict[str, Any] = evaluate(checkpoint, questions, options, make_progress())
    return result
