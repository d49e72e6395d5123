"""What `moa-bench split` found of each method, from rounds of answers; as Markdown. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moa_bench.report import Column, Spread, at_temperature, facts_line, table_of

# What results and tables call the methods that they treat by themselves.
PLAIN = "plain streaming"
CO_LOCATED = "co-located: the server drafts"
ALL = "moa: everything on"
SYNCHRONOUS, STREAMED = "synchronous rounds", "streamed"
LOOPBACK = re.compile(r"127\.0\.0\.1:\d+")
COLUMNS: tuple[Column, ...] = (
    ("method", "{0.method}"),
    ("tokens/s", lambda row: f"{Spread.of(row.figures.rates).median:.1f}"),
    ("over plain", lambda row: "1" if row.method == PLAIN else _ratio(row.figures.over_plain)),
    ("worst", "{0.worst}"),
    ("first token", lambda row: "1" if row.method == PLAIN else _ratio(row.figures.first_over_plain)),
    ("tokens a forward", lambda row: f"{100.0 / row.forwards:.2f}"),
    ("forwards a 100 tokens", "{0.forwards:.0f}"),
    ("gap, ms: median", lambda row: row.gap(50)),
    ("95 %", lambda row: row.gap(95)),
    ("99 %", lambda row: row.gap(99)),
    ("up a token", lambda row: _a_token(row, "up")),
    ("down a token", lambda row: _a_token(row, "down")),
    ("server's CPU, ms a token", lambda row: _a_token(row, "server_cpu_s", 1, 1e3)),
    ("device's", lambda row: _a_token(row, "own_cpu_s", 1, 1e3)),
)
Rounds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LinkFigures:
    answers: list[Mapping[str, Any]]  # those that are not failures
    rates: list[float]  # tokens a second
    over_plain: list[float]  # ratios of rates to the mean of plain streaming before and after
    first_over_plain: list[float]

    def a_token(self, field: str, scale: float = 1.0) -> float | None:
        """The sum of a field over all answers, for each token."""
        values, tokens = [each[field] for each in self.answers], sum(int(each["tokens"]) for each in self.answers)
        return None if None in values or not tokens else scale * sum(values) / tokens


def figures_of(rounds: Rounds, method: str) -> LinkFigures:
    """A method over all rounds in which it did not fail; of plain streaming, both answers."""
    found = LinkFigures([], [], [], [])
    for each in rounds:
        plain = each["answers"][PLAIN]
        plain_rate = sum(one["tokens"] / one["seconds"] for one in plain) / len(plain)
        plain_first = sum(one["first_ms"] for one in plain) / len(plain)
        for answer in each["answers"].get(method, ()):
            if "failure" in answer:
                continue
            found.answers.append(answer)
            found.rates.append(answer["tokens"] / answer["seconds"])
            if answer["same"]:
                found.over_plain.append(found.rates[-1] / plain_rate)
                found.first_over_plain.append(answer["first_ms"] / plain_first)
    return found


@dataclass(frozen=True, slots=True)
class MethodRow:
    method: str
    figures: LinkFigures

    @property
    def worst(self) -> str:
        ratios = self.figures.over_plain
        return f"{min(ratios):.2f}" if self.method != PLAIN and ratios else ""

    @property
    def forwards(self) -> float:
        """For 100 tokens."""
        return self.figures.a_token("forwards", 100.0) or 0.0

    def gap(self, percent: int) -> str:
        gaps_ms = [gap for each in self.figures.answers for gap in each["gaps_ms"]]
        return f"{np.percentile(gaps_ms or [0.0], percent):.0f}"


def render(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    sent, streamed = ("chains or trees", "chains or trees that grow") if result["has_oracles"] else ("a tree", "trees")
    drafters = "; ".join(f"{name}: {said}" for name, said in result["drafters"].items())
    what = (
        f"{effort.asked} questions, each asked of all methods in turn, {at_temperature(effort.temperature)}, on the "
        f"level {result['level']}; answers of {effort.answer_tokens} tokens. Synchronous rounds send {sent} of "
        f"{effort.chain} levels after each verdict; streamed drafts are {streamed}. Ratios of tokens a second over the "
        f"whole answer: median (quartiles). Bytes are those of messages.\n\nDrafters: {drafters}.\n"
    )
    parts = [facts_line(result), what]
    for link in result["links"]:
        parts += [f"### {link}\n", link_table([each for each in result["rounds"] if each["link"] == link])]
    return "\n".join([*parts, remarks(result["rounds"])])


def link_table(rounds: Rounds) -> str:
    rows, failed = [], []
    for method in dict.fromkeys(name for each in rounds for name in each["answers"]):
        figures = figures_of(rounds, method)
        if figures.answers:
            rows.append(MethodRow(method, figures))
        else:
            failed.append(f"| {method} | failed |{'  |' * (len(COLUMNS) - 2)}\n")
    return table_of(COLUMNS, rows) + "".join(failed)


def _ratio(values: Sequence[float]) -> str:
    return f"{Spread.of(values):2}" if values else "another text"


def _a_token(row: MethodRow, field: str, digits: int = 0, scale: float = 1.0) -> str:
    """The sum of a field for each token; empty where nothing counts it."""
    value = row.figures.a_token(field, scale)
    return "" if value is None else f"{value:.{digits}f}"


def remarks(rounds: Rounds) -> str:
    """Whether all texts are plain streaming's, what failed, and where the program loses."""
    answers = [(each["link"], name, one) for each in rounds for name, many in each["answers"].items() for one in many]
    other = {f"{name} over {link}" for link, name, one in answers if not one.get("same", True)}
    lines = ["Token by token, all answers are plain streaming's."]
    if other:
        lines = [f"With answers that are not plain streaming's, left out of ratios: {', '.join(sorted(other))}."]
    failed: dict[tuple[str, str], list[str]] = {}
    for link, name, one in answers:
        if "failure" in one:
            failed.setdefault((link, LOOPBACK.sub("the link", one["failure"])), []).append(name)
    lines += [f"Failed over {link}: {', '.join(names)}: {why}" for (link, why), names in failed.items()]
    lost = []
    for link in dict.fromkeys(each["link"] for each in rounds):
        ratios = figures_of([each for each in rounds if each["link"] == link], ALL).over_plain
        if ratios and (median := Spread.of(ratios).median) < 1.0:
            lost.append(f"{link} ({median:.2f})")
    if lost:
        lines.append(f"Slower than plain streaming with everything on: {', '.join(lost)}.")
    return "\n".join(lines) + "\n"
