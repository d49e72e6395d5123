"""What `moa-bench cut` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread


def render(result: Mapping[str, Any]) -> str:
    """The table of incidents."""
    rows = []
    for kind in dict.fromkeys(incident.kind for incident in result["incidents"]):
        found = [incident for incident in result["incidents"] if incident.kind is kind]
        rows.append(
            [
                kind.value,
                len(found),
                sum(incident.whole for incident in found),
                sum(incident.alone for incident in found),
                Spread.of([1e3 * incident.seconds for incident in found]).text(0),
                *_distribution([incident.stall_ms for incident in found if incident.stall_ms is not None]),
                *_distribution([incident.resume_ms for incident in found if incident.resume_ms is not None]),
            ]
        )
    head = [
        "incident",
        "met",
        "texts whole",
        "wrote standalone text",
        "away, ms",
        "stall, ms",
        "95 %",
        "longest",
        "to resume, ms",
    ]
    head += ["95 %", "longest"]
    effort = result["effort"]
    note = (
        f"{result['answers']} answers of {effort.answer_tokens} tokens, greedy, {result['level']}, over "
        f"{', and '.join([result['link'], *result['recordings']])}. Median (quartiles).\n"
    )
    return "\n".join([facts_line(result), note, table(head, rows)])


def _distribution(values: list[float]) -> tuple[str, str, str]:
    if not values:
        return "none", "", ""
    high = sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
    return Spread.of(values).text(0), f"{high:.0f}", f"{max(values):.0f}"
