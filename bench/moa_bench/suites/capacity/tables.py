"""What users met, as Markdown, next to what arithmetic says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report.report import Column, facts_line, table, table_of
from moa_bench.users import closed_form
from moa_bench.users.closed_form import ForwardTimes
from moa_bench.users.figures import UsersAt, UsersCell, UserStats, users_at
from moa_bench.users.strategies import Strategy

PLAIN = Strategy("plain")
RATES = (5.0, 10.0, 15.0)  # tokens a second: reading aloud, reading, skimming
SPARED_AT = 0.8  # acceptance, of the table of what drafting on devices spares a server
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
    ("closed form", "{0.form}"),
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
    times: ForwardTimes | None

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

    @property
    def form(self) -> str:
        acceptance = acceptance_of(self.cell.way)
        if self.times is None or acceptance is None:
            return ""
        return f"{closed_form.tokens_per_s(self.times, self.cell.users, acceptance):.1f}"


def render(result: Mapping[str, Any]) -> str:
    """One row for each way and number of users; how many users each way serves at a speed; what devices spare."""
    ways, times = by_way(result["cells"])
    plain = {cell.users: cell for cell in ways[PLAIN]}
    rows = [CapacityRow(cell, of_way[0], plain.get(cell.users), times) for of_way in ways.values() for cell in of_way]
    parts = [facts_line(result), _note(result), table_of(CELLS, rows), _users_table(ways, times)]
    if times is not None:
        parts.append(_spared_table(times, sorted(plain), result["draft_step_ms"]))
    return "\n".join(parts)


def by_way(cells: Sequence[UsersCell]) -> tuple[dict[Strategy, list[UsersCell]], ForwardTimes | None]:
    """The cells of each way, and what the plain ones say of forwards."""
    ways: dict[Strategy, list[UsersCell]] = {}
    for cell in cells:
        ways.setdefault(cell.way, []).append(cell)
    rates = [(cell.users, cell.met.median_tokens_per_s) for cell in ways[PLAIN]]
    return ways, ForwardTimes.fit([(users, 1e3 / rate) for users, rate in rates if rate])


def _note(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    think = f"{effort.think_seconds:g} s of thinking" if effort.think_seconds else "no thinking"
    others = sum(cell.other_texts for cell in result["cells"])
    return (
        f"Prompts of {effort.lengths.shortest} to {effort.lengths.longest} tokens, answers of {effort.answer_tokens}, "
        f"{think}, {result['level']}, links: {', '.join(result['links'])}. "
        f"All users ask for {effort.seconds:g} s in each row. "
        f"Drafts: chains of an oracle, {effort.draft_ms:g} ms a draft step; "
        f"trees of the package's drafter ({result['drafter']}). "
        f"Answers that differ from the text written for the same prompt before: {others}.\n"
    )


def _users_table(ways: Mapping[Strategy, Sequence[UsersCell]], times: ForwardTimes | None) -> str:
    """How many users get a speed each, measured and by the closed form."""
    found = {
        way: [users_at(rate, [(cell.users, cell.met.slowest_tokens_per_s) for cell in of_way]) for rate in RATES]
        for way, of_way in ways.items()
    }
    rows = []
    for way, at_rates in found.items():
        acceptance = acceptance_of(way)
        forms = ["" for _ in RATES]
        if times is not None and acceptance is not None:
            forms = [_form(closed_form.users_at(times, rate, acceptance)) for rate in RATES]
        rows.append([way.name, *map(_users, at_rates), _over(at_rates[0], found[PLAIN][0]), *forms])
    head = ["users that get, each, once their text comes,", *(f"{rate:g} tokens a second" for rate in RATES)]
    return table([*head, f"over plain's at {RATES[0]:g}", *(f"closed form: {rate:g}" for rate in RATES)], rows)


def _spared_table(times: ForwardTimes, numbers: Sequence[int], draft_ms: float) -> str:
    """How many times as many users a server serves whose devices draft, as one that drafts by itself."""
    rows = []
    for users in numbers:
        drafted = closed_form.best_drafted(times, users, SPARED_AT)
        verify_ms = times.ms(users * (1 + drafted))
        ratio = closed_form.users_over_colocated(drafted, users * draft_ms, verify_ms)
        rows.append([users, drafted, f"{verify_ms:.1f}", f"{ratio:.2f}"])
    head = [f"users, acceptance {SPARED_AT:g}", "best chain g", "a verification t_v, ms", "1 + g t_d / t_v"]
    note = f"A server drafts for one user after the other, {draft_ms:.1f} ms a step: t_d is that for all users.\n\n"
    return note + table(head, rows)


def acceptance_of(way: Strategy) -> float | None:
    """For the closed form; None: not known beforehand."""
    if way.server_drafts:
        return None
    return 0.0 if way == PLAIN else way.acceptance


def _users(found: UsersAt) -> str:
    if found.at_least:
        return f"at least {found.users:g}"
    return f"{found.users:g}" if found.users else "not one"


def _form(users: float) -> str:
    return f"{users:.1f}" if users >= 1 else "not one"


def _over(found: UsersAt, plain: UsersAt) -> str:
    """The ratio, as far as the rows tell."""
    if plain.at_least or not plain.users:
        return ""
    return f"{'at least ' if found.at_least else ''}{found.users / plain.users:.2f}"
