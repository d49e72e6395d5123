"""What restarts did, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import facts_line, table


def render(result: Mapping[str, Any]) -> str:
    """One row."""
    effort, survived = result["effort"], result["survived"]
    how = "SIGKILL" if effort.kill else f"SIGTERM, grace {effort.grace_s:g} s"
    note = (
        f"{effort.restarts} restarts ({how}) of one server under {effort.clients} clients that ask without end for "
        f"answers of {effort.answer_tokens} tokens, {result['target']}, {result['level']}, drafter {result['drafter']}"
        f"{'; another server goes on meanwhile' if effort.successor else ''}.\n"
    )
    row = [
        survived.answers,
        survived.through,
        survived.lost,
        survived.different,
        f"{survived.stall_median_s:.2f}",
        f"{survived.stall_longest_s:.2f}",
        f"{survived.away_median_s:.2f}",
    ]
    head = ["answers", "through a restart", "lost", "different", "median stall, s", "longest", "server away, s"]
    return "\n".join([facts_line(result), note, table(head, [row])])
