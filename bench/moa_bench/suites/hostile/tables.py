"""What the attacks did, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import facts_line, table
from moa_bench.suites.hostile.attack_result import Gaps


def render(result: Mapping[str, Any]) -> str:
    """One row an attack."""
    effort, attacks = result["effort"], result["attacks"]
    held = sum(each.is_harmless for each in attacks)
    note = (
        f"{effort.answers} answers of {effort.answer_tokens} tokens before, during and after each attack, "
        f"{result['level']}. "
        "Where the attacker has answers written too (*), *before* is next to an honest client that does the same. "
        f"{held} of {len(attacks)} attacks stayed within the limits.\n"
    )
    rows = [
        [
            each.attack + (" *" if each.beside_neighbour else ""),
            _p95(each.before),
            _p95(each.during),
            f"{100 * each.growth:+.0f} %" if not each.during.failure else "",
            f"{each.during.worst_ms:.0f}",
            _p95(each.after),
            f"{each.memory_growth_mb:+.1f}",
            f"{each.memory_after_mb - each.memory_before_mb:+.1f}",
            "yes" if each.before.exact and each.during.exact and each.after.exact else "NO",
        ]
        for each in attacks
    ]
    head = [
        "attack",
        "p95 gap before, ms",
        "during",
        "growth",
        "worst gap",
        "p95 after",
        "memory at its peak, MB",
        "and after",
        "texts exact",
    ]
    return "\n".join([facts_line(result), note, table(head, rows)])


def _p95(gaps: Gaps) -> str:
    return gaps.failure or f"{gaps.p95_ms:.0f}"
