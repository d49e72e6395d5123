"""What `moa-bench alone` found, as Markdown."""

from collections.abc import Mapping
from typing import Any

from moa_training.report import task_table, text_table

from moa_bench.report.report import at_temperature, facts_line


def render(result: Mapping[str, Any]) -> str:
    evaluations, effort = result["evaluations"], result["effort"]
    how = at_temperature(effort.temperature)
    count = next(iter(evaluations.values()))["questions"]
    what = (
        f"{count} questions on the level {result['level']}, {how}, answers of at most {effort.answer_tokens} tokens, "
        f"each taken from the server at every tenth; the device then writes {effort.alone_tokens} tokens. An API "
        "client has what was served, and no more."
    )
    tables = [text_table(evaluations, after_tokens=False), task_table(evaluations)]
    heads = ["### Text", "### Results of tasks"]
    parts = [f"{head}\n\n{table}\n" for head, table in zip(heads, tables, strict=True) if table]
    return "\n".join([facts_line(result), what + "\n", *parts])
