"""What the attacks did, as Markdown."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, facts_line, table_of
from moa_bench.suites.hostile.attack_result import Gaps

ATTACKS: tuple[Column, ...] = (
    ("attack", lambda each: each.attack + (" *" if each.beside_neighbour else "")),
    ("p95 gap before, ms", lambda each: _p95(each.before)),
    ("during", lambda each: _p95(each.during)),
    ("growth", lambda each: f"{100 * each.growth:+.0f} %" if not each.during.failure else ""),
    ("worst gap", "{0.during.worst_ms:.0f}"),
    ("p95 after", lambda each: _p95(each.after)),
    ("memory at its peak, MB", "{0.memory_growth_mb:+.1f}"),
    ("and after", lambda each: f"{each.memory_after_mb - each.memory_before_mb:+.1f}"),
    ("texts exact", lambda each: "yes" if each.is_exact else "NO"),
)


def render(result: Mapping[str, Any]) -> str:
    effort, attacks = result["effort"], result["attacks"]
    held = sum(each.is_harmless for each in attacks)
    note = (
        f"{effort.answers} answers of {effort.answer_tokens} tokens before, during and after each attack, "
        f"{result['level']}. "
        "Where the attacker has answers written too (*), *before* is next to an honest client that does the same. "
        f"{held} of {len(attacks)} attacks stayed within the limits.\n"
    )
    return "\n".join([facts_line(result), note, table_of(ATTACKS, attacks)])


def _p95(gaps: Gaps) -> str:
    return gaps.failure or f"{gaps.p95_ms:.0f}"
