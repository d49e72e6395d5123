"""What `moa-bench quality` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import machine_line, table


def render(result: Mapping[str, Any]) -> str:
    """The table of levels."""
    rows = [
        [
            row.level,
            row.details,
            f"{row.divergence:.5f}",
            f"{row.perplexity:.4f}",
            f"{100 * (row.perplexity_ratio - 1):+.2f} %",
            f"{row.agreement:.4f}",
        ]
        for row in result["levels"]
    ]
    note = (
        f"{result['positions']} tokens of {result['answers']} greedy answers of the float32 target to questions, "
        "teacher-forced.\n"
    )
    head = ["level", "computed by", "mean KL from float32", "perplexity", "over float32's", "same first choice"]
    return "\n".join([machine_line(result), note, table(head, rows)])
