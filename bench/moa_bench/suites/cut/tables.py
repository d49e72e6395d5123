"""What `moa-bench cut` found, as Markdown. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report.report import Column, facts_line, table_of
from moa_bench.report.spread import Spread
from moa_bench.suites.cut.incident import Incident, IncidentKind

INCIDENTS: tuple[Column, ...] = (
    ("incident", "{0.kind.value}"),
    ("met", lambda row: len(row.found)),
    ("texts whole", lambda row: sum(incident.whole for incident in row.found)),
    ("wrote standalone text", lambda row: sum(incident.alone for incident in row.found)),
    ("away, ms", lambda row: f"{Spread.of([1e3 * incident.seconds for incident in row.found]):0}"),
    ("stall, ms", lambda row: _spread(row.stalls_ms)),
    ("95 %", lambda row: _at(0.95, row.stalls_ms)),
    ("longest", lambda row: _at(1.0, row.stalls_ms)),
    ("to resume, ms", lambda row: _spread(row.resumes_ms)),
    ("95 %", lambda row: _at(0.95, row.resumes_ms)),
    ("longest", lambda row: _at(1.0, row.resumes_ms)),
)


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """All incidents of a kind."""

    kind: IncidentKind
    found: list[Incident]

    @property
    def stalls_ms(self) -> list[float]:
        return [incident.stall_ms for incident in self.found if incident.stall_ms is not None]

    @property
    def resumes_ms(self) -> list[float]:
        return [incident.resume_ms for incident in self.found if incident.resume_ms is not None]


def render(result: Mapping[str, Any]) -> str:
    incidents, effort = result["incidents"], result["effort"]
    kinds = dict.fromkeys(incident.kind for incident in incidents)
    rows = [IncidentRow(kind, [incident for incident in incidents if incident.kind is kind]) for kind in kinds]
    note = (
        f"{result['answers']} answers of {effort.answer_tokens} tokens to {effort.asked} questions, greedy, "
        f"{result['level']}, over {', and '.join([result['link'], *result['recordings']])}. Median (quartiles).\n"
    )
    return "\n".join([facts_line(result), note, table_of(INCIDENTS, rows)])


def _spread(values: Sequence[float]) -> str:
    return f"{Spread.of(values):0}" if values else "none"


def _at(share: float, values: Sequence[float]) -> str:
    """The value below which this share of the values is; empty: there are none."""
    return f"{sorted(values)[min(len(values) - 1, int(share * len(values)))]:.0f}" if values else ""
