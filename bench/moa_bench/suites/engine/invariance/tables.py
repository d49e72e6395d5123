"""What `moa-bench invariance` counted, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import machine_line, table


def render(result: Mapping[str, Any]) -> str:
    counted = [(kind["kind"], kind["counts"]) for kind in result["kinds"]]
    rows = [[name, counts.rows, counts.different, counts.choices, counts.flipped] for name, counts in counted]
    rows.append(["in all", *(sum(row[column] for row in rows) for column in (1, 2, 3, 4))])
    variants = f"; kernels of this CPU: {', '.join(result['variants'])}" if result["variants"] else ""
    note = (
        f"{result['positions']} positions of {result['texts']} texts (the longest has {result['longest']}), level "
        f"{result['level']}, {result['execution']}{variants}; {result['seconds'] / 60:.0f} minutes.\n"
    )
    head = ["read again in", "rows compared", "of other bits", "choices compared", "another choice"]
    return "\n".join([machine_line(result), note, table(head, rows)])
