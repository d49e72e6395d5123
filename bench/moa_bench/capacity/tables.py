"""What users met, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moa_bench.capacity.figures import UsersAt, users_at
from moa_bench.report.report import facts_line, table

if TYPE_CHECKING:
    from moa_bench.capacity.suite import Cell

RATES = (5.0, 10.0, 15.0)  # tokens a second: reading aloud, reading, skimming
HEAD = (
    "way",
    "users",
    "tokens a second in all",
    "of one user's",
    "gap p50, ms",
    "p95",
    "first token p50, ms",
    "p95",
    "a user, tokens a second: median",
    "slowest",
    "Jain's index",
    "users without text",
    "tokens an arrival",
    "clients' core busy",
)


def render(result: Mapping[str, Any]) -> str:
    """One row for each way and number of users; then how many users each way serves at a speed."""
    effort, cells = result["effort"], result["cells"]
    lengths = effort.lengths
    think = f"{effort.think_seconds:g} s of thinking" if effort.think_seconds else "no thinking"
    others = sum(cell.other_texts for cell in cells)
    note = (
        f"Prompts of {lengths.shortest} to {lengths.longest} tokens, answers of {effort.answer_tokens}, {think}, "
        f"{result['level']}. All users ask for {effort.seconds:g} s in each row. "
        f"Drafts: chains of an oracle, {effort.draft_ms:g} ms a draft step. "
        f"Answers that differ from the text written for the same prompt before: {others}.\n"
    )
    ways: dict[float | None, list[Cell]] = {}
    for cell in cells:
        ways.setdefault(cell.acceptance, []).append(cell)
    rows = [_row(cell, of_way[0]) for of_way in ways.values() for cell in of_way]
    counts = [
        [_name(acceptance), *(_users(users_at(rate, _slowest(of_way))) for rate in RATES)]
        for acceptance, of_way in ways.items()
    ]
    head = ["users that get, each, once their text comes,", *(f"{rate:g} tokens a second" for rate in RATES)]
    return "\n".join([facts_line(result), note, table(HEAD, rows), table(head, counts)])


def _row(cell: Cell, first: Cell) -> list[object]:
    met = cell.met
    ratio = f"{met.tokens_per_s / first.met.tokens_per_s:.2f}" if first.users == 1 else ""
    return [
        _name(cell.acceptance),
        cell.users,
        f"{met.tokens_per_s:.0f}",
        ratio,
        f"{met.gap_p50_ms:.0f}",
        f"{met.gap_p95_ms:.0f}",
        f"{met.first_p50_ms:.0f}",
        f"{met.first_p95_ms:.0f}",
        f"{met.median_tokens_per_s:.1f}",
        f"{met.slowest_tokens_per_s:.1f}",
        f"{met.fairness:.3f}",
        met.unserved,
        f"{met.tokens_an_arrival:.2f}",
        f"{100 * cell.client_share:.0f} %",
    ]


def _name(acceptance: float | None) -> str:
    return "plain" if acceptance is None else f"drafts, acceptance {acceptance:g}"


def _slowest(cells: Sequence[Cell]) -> list[tuple[int, float]]:
    return [(cell.users, cell.met.slowest_tokens_per_s) for cell in cells]


def _users(found: UsersAt) -> str:
    if found.at_least:
        return f"at least {found.users:g}"
    return f"{found.users:g}" if found.users else "not one"
