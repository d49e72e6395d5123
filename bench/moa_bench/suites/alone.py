"""`moa-bench alone`: quality against the share of the answer that was served, for each drafter and for none.

`moa-train evaluate` takes the server away at each tenth of the target's answer, at the same cuts for all.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from moa_shared.drafter.checkpoint import DEEP_DRAFTER, DEFAULT_DRAFTER
from moa_shared.programs.progress import make_progress
from moa_training.evaluation.evaluation import evaluate
from moa_training.report import task_table, text_table
from moa_training.settings import EvaluationOptions

from moa_bench.machine import on_cores
from moa_bench.registry import AloneEffort
from moa_bench.report import at_temperature, facts_line
from moa_bench.suite import Result, SuiteRun

SHIPPED = {"MoA, N = 3, shipped": DEFAULT_DRAFTER, "MoA, N = 12, shipped": DEEP_DRAFTER, "prompt look-up": "lookup"}


def measure(effort: AloneEffort, run: SuiteRun) -> Result:
    options = EvaluationOptions(
        target=run.model,
        limit=effort.questions,
        answer_tokens=effort.answer_tokens,
        prompt_tokens=effort.longest_prompt,
        execution=run.level,
        standalone=effort.alone_tokens,
        task_tokens=effort.task_tokens,
        temperature=effort.temperature,
    )

    named = SHIPPED | {name: str(path) for name, path in run.drafters.items()}
    with on_cores(run.server_cores):
        evaluations = {
            name: run.keep(name, partial(evaluate, checkpoint, run.questions, options, make_progress()))
            for name, checkpoint in named.items()
        }
    return {"target": next(iter(evaluations.values()))["target"], "evaluations": evaluations}


def render(result: Mapping[str, Any]) -> str:
    evaluations, effort = result["evaluations"], result["effort"]
    count = next(iter(evaluations.values()))["questions"]
    what = (
        f"{count} questions on the level {result['level']}, {at_temperature(effort.temperature)}, answers of at most "
        f"{effort.answer_tokens} tokens, each taken from the server at every tenth; the device then writes "
        f"{effort.alone_tokens} tokens. An API client has what was served, and no more.\n"
    )
    tables = {"### Text": text_table(evaluations, after_tokens=False), "### Results of tasks": task_table(evaluations)}
    return "\n".join([facts_line(result), what, *(f"{head}\n\n{table}\n" for head, table in tables.items() if table)])
