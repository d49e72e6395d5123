"""What users met, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report.report import Column, facts_line, table, table_of
from moa_bench.users.figures import UsersAt, UsersCell, UserStats, users_at
from moa_bench.users.strategies import Strategy

PLAIN = Strategy("plain")
RATES = (5.0, 10.0, 15.0)  # tokens a second: reading aloud, reading, skimming
CELLS: tuple[Column, ...] = (
    ("way", "{0.cell.way.name}"),
    ("users", "{0.cell.users}"),
    ("tokens a second in all", "{0.met.tokens_per_s:.0f}"),
    ("of one user's", "{0.over_one}"),
    ("gap p50, ms", "{0.met.gap_p50_ms:.0f}"),
    ("p95", "{0.met.gap_p95_ms:.0f}"),
    ("p95 over plain's", "{0.gap_over_plain}"),
    ("first token p50, ms", "{0.met.first_p50_ms:.0f}"),
    ("p95", "{0.met.first_p95_ms:.0f}"),
    ("a user, tokens a second: median", "{0.met.median_tokens_per_s:.1f}"),
    ("slowest", "{0.met.slowest_tokens_per_s:.1f}"),
    ("Jain's index", "{0.met.fairness:.3f}"),
    ("users without text", "{0.met.unserved}"),
    ("tokens an arrival", "{0.met.tokens_an_arrival:.2f}"),
    ("clients' core busy", lambda row: f"{100 * row.cell.client_share:.0f} %"),
)


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A cell next to what it is compared with."""

    cell: UsersCell
    first: UsersCell  # of the same way, with the fewest users
    plain: UsersCell | None  # of as many users

    @property
    def met(self) -> UserStats:
        return self.cell.met

    @property
    def over_one(self) -> str:
        alone = self.first.met.tokens_per_s if self.first.users == 1 else 0.0
        return f"{self.met.tokens_per_s / alone:.2f}" if alone else ""

    @property
    def gap_over_plain(self) -> str:
        plain_ms = self.plain.met.gap_p95_ms if self.plain is not None else 0.0
        return f"{self.met.gap_p95_ms / plain_ms:.2f}" if plain_ms else ""


def render(result: Mapping[str, Any]) -> str:
    ways = by_way(result["cells"])
    plain = {cell.users: cell for cell in ways[PLAIN]}
    rows = [CapacityRow(cell, of_way[0], plain.get(cell.users)) for of_way in ways.values() for cell in of_way]
    parts = [facts_line(result), _note(result), table_of(CELLS, rows), _users_table(ways)]
    return "\n".join([*parts, *_too_short(result)])


def by_way(cells: Sequence[UsersCell]) -> dict[Strategy, list[UsersCell]]:
    """The cells of each way."""
    ways: dict[Strategy, list[UsersCell]] = {}
    for cell in cells:
        ways.setdefault(cell.way, []).append(cell)
    return ways


def _note(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    think = f"{effort.think_seconds:g} s of thinking" if effort.think_seconds else "no thinking"
    others = sum(cell.other_texts for cell in result["cells"])
    return (
        f"Prompts of {effort.prompt_tokens[0]} to {effort.prompt_tokens[1]} tokens, answers of {effort.answer_tokens}, "
        f"{think}, {result['level']}, links: {', '.join(result['links'])}. "
        f"All users ask for {effort.seconds:g} s in each row. "
        f"Drafts: chains of an oracle, {effort.draft_ms:g} ms a draft step; "
        f"trees of the package's drafter ({result['drafter']}). "
        f"Answers that differ from the text written for the same prompt before: {others}.\n"
    )


def _too_short(result: Mapping[str, Any]) -> Iterator[str]:
    """What to do where prompts took so much of the time that the rates are those of a few users."""
    effort, cells = result["effort"], result["cells"]
    without = [cell for cell in cells if 2 * cell.met.unserved >= cell.users]
    if without:
        most = max(without, key=lambda cell: cell.met.unserved / cell.users)
        yield (
            f"In {len(without)} of {len(cells)} rows half of the users or more had no text when the "
            f"{effort.seconds:g} s were over ({most.met.unserved} of {most.users} at most): "
            "prompts took the time, and the rates are those of the others. "
            "Give --seconds more, or --prompt-tokens less.\n"
        )


def _users_table(ways: Mapping[Strategy, Sequence[UsersCell]]) -> str:
    found = {
        way: [users_at(rate, [(cell.users, cell.met.slowest_tokens_per_s) for cell in of_way]) for rate in RATES]
        for way, of_way in ways.items()
    }
    rows = [[way.name, *map(_users, at_rates), _over(at_rates[0], found[PLAIN][0])] for way, at_rates in found.items()]
    head = ["users that get, each, once their text comes,", *(f"{rate:g} tokens a second" for rate in RATES)]
    return table([*head, f"over plain's at {RATES[0]:g}"], rows)


def _users(found: UsersAt) -> str:
    if found.at_least:
        return f"at least {found.users:g}"
    return f"{found.users:g}" if found.users else "not one"


def _over(found: UsersAt, plain: UsersAt) -> str:
    """The ratio, as far as the rows tell."""
    if plain.at_least or not plain.users:
        return ""
    return f"{'at least ' if found.at_least else ''}{found.users / plain.users:.2f}"
