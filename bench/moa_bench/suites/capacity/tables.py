"""What users met, as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report import Column, facts_line, table, table_of
from moa_bench.suites.capacity.figures import Strategy, UsersAt, UsersCell, UserStats, users_at

PLAIN = Strategy("plain")
RATES = (5.0, 10.0, 15.0)  # tokens a second: reading aloud, reading, skimming
CELLS: tuple[Column, ...] = (
    ("way", "{0.cell.way.name}"),
    ("round trip, ms", "{0.cell.rtt_ms:g}"),
    ("users", "{0.cell.users}"),
    ("tokens a second in all", "{0.met.tokens_per_s:.0f}"),
    ("over plain's", "{0.over_plain}"),
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
Ways = Mapping[tuple[float, Strategy], Sequence[UsersCell]]


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A cell next to what it is compared with."""

    cell: UsersCell
    first: UsersCell  # of the same way, with the fewest users
    plain: UsersCell | None  # of as many users, over the same links

    @property
    def met(self) -> UserStats:
        return self.cell.met

    @property
    def over_plain(self) -> str:
        return _ratio(self.met.tokens_per_s, self.plain.met.tokens_per_s if self.plain is not None else 0.0)

    @property
    def over_one(self) -> str:
        return _ratio(self.met.tokens_per_s, self.first.met.tokens_per_s if self.first.users == 1 else 0.0)

    @property
    def gap_over_plain(self) -> str:
        return _ratio(self.met.gap_p95_ms, self.plain.met.gap_p95_ms if self.plain is not None else 0.0)


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else ""


def read_cell(cell: Mapping[str, Any]) -> UsersCell:
    """A cell from JSON."""
    return UsersCell(**{**cell, "way": Strategy(**cell["way"]), "met": UserStats(**cell["met"])})


def render(result: Mapping[str, Any]) -> str:
    effort, cells = result["effort"], [read_cell(each) for each in result["cells"]]
    ways: dict[tuple[float, Strategy], list[UsersCell]] = {}
    for cell in cells:
        ways.setdefault((cell.rtt_ms, cell.way), []).append(cell)
    plain = {(cell.rtt_ms, cell.users): cell for cell in cells if cell.way == PLAIN}
    rows = [
        CapacityRow(cell, of_way[0], plain.get((cell.rtt_ms, cell.users)))
        for of_way in ways.values()
        for cell in of_way
    ]
    think = f"{effort.think_seconds:g} s of thinking" if effort.think_seconds else "no thinking"
    note = (
        f"Prompts of {effort.prompt_tokens[0]} to {effort.prompt_tokens[1]} tokens, answers of {effort.answer_tokens}, "
        f"{think}, {result['level']}, links: {', '.join(result['links'])}. "
        f"All users ask for {effort.seconds:g} s in each row. "
        f"Drafts: chains of an oracle, {effort.draft_ms:g} ms a draft step; "
        f"trees of the package's drafter ({result['drafter']}). "
        f"Answers that differ from the text written for the same prompt before: "
        f"{sum(cell.other_texts for cell in cells)}.\n"
    )
    return "\n".join([facts_line(result), note, table_of(CELLS, rows), _users_table(ways), _too_short(effort, cells)])


def _too_short(effort: Any, cells: Sequence[UsersCell]) -> str:
    """What to do where prompts took so much of the time that the rates are those of a few users."""
    without = [cell for cell in cells if 2 * cell.met.unserved >= cell.users]
    if not without:
        return ""
    most = max(without, key=lambda cell: cell.met.unserved / cell.users)
    return (
        f"In {len(without)} of {len(cells)} rows half of the users or more had no text when the "
        f"{effort.seconds:g} s were over ({most.met.unserved} of {most.users} at most): "
        "prompts took the time, and the rates are those of the others. "
        "Give --seconds more, or --prompt-tokens less.\n"
    )


def _users_table(ways: Ways) -> str:
    found = {
        key: [users_at(rate, [(cell.users, cell.met.slowest_tokens_per_s) for cell in of_way]) for rate in RATES]
        for key, of_way in ways.items()
    }
    rows = [
        [way.name, f"{rtt_ms:g}", *map(_users, at_rates), _over(at_rates[0], found[rtt_ms, PLAIN][0])]
        for (rtt_ms, way), at_rates in found.items()
    ]
    head = ["users that get, each, once their text comes,", "round trip, ms"]
    head += [*(f"{rate:g} tokens a second" for rate in RATES), f"over plain's at {RATES[0]:g}"]
    return table(head, rows)


def _users(found: UsersAt) -> str:
    if found.at_least:
        return f"at least {found.users:g}"
    return f"{found.users:g}" if found.users else "not one"


def _over(found: UsersAt, plain: UsersAt) -> str:
    """The ratio, as far as the rows tell."""
    if plain.at_least or not plain.users:
        return ""
    return f"{'at least ' if found.at_least else ''}{found.users / plain.users:.2f}"
