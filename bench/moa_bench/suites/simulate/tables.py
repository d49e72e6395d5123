"""How far the simulation is from what was measured, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, table_of

TOLERANCE = 0.15
ROWS: tuple[Column, ...] = (
    ("measured by, over", "{0.result}, {0.link}"),
    ("way", "{0.way}"),
    ("measured", "{0.measured:.2f}"),
    ("simulated", "{0.simulated:.2f}"),
    ("error", "{0.error:+.0%}"),
    (f"within {TOLERANCE:.0%}", lambda row: "yes" if abs(row.error) <= TOLERANCE else "no"),
)


def render(result: Mapping[str, Any]) -> str:
    rows = result["rows"]
    if not rows:
        return "Nothing to check yet: `moa-bench split --pin --shape 8b` measures what is simulated.\n"
    missed = sum(abs(row.error) > TOLERANCE for row in rows)
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row.origin, {})[row.result] = None
    sources = "; ".join(f"{', '.join(results)} ({origin})" for origin, results in names.items())
    note = (
        f"Tokens a second after the first, over plain streaming's, of {sources}: {len(rows) - missed} of {len(rows)} "
        f"are within {TOLERANCE:.0%} of the simulation, which has the measured step and rows, the same link, and the "
        "same luck of the oracle.\n"
    )
    return "\n".join([note, table_of(ROWS, rows)])
