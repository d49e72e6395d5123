"""What `moa-bench quality` found, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, machine_line, table_of

LEVELS: tuple[Column, ...] = (
    ("level", "{0.level}"),
    ("computed by", "{0.details}"),
    ("mean KL from float32", "{0.divergence:.5f}"),
    ("perplexity", "{0.perplexity:.4f}"),
    ("over float32's", lambda level: f"{100 * (level.perplexity_ratio - 1):+.2f} %"),
    ("same first choice", "{0.agreement:.4f}"),
)


def render(result: Mapping[str, Any]) -> str:
    note = (
        f"{result['positions']} tokens of {result['answers']} greedy answers of the float32 target to questions, "
        "teacher-forced.\n"
    )
    return "\n".join([machine_line(result), note, table_of(LEVELS, result["levels"])])
