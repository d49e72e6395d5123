"""What `moa-bench split` found, as Markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moa_bench.report.report import Column, at_temperature, energy_line, facts_line, table_of
from moa_bench.report.spread import Spread, median_of
from moa_bench.suites.split.figures import (
    ALL,
    CO_LOCATED,
    PLAIN,
    STREAMED,
    SYNCHRONOUS,
    TREE_NODES,
    LinkFigures,
    figures_of,
    over,
)

LOOPBACK = re.compile(r"127\.0\.0\.1:\d+")
EAGLE = f"EAGLE-2: {SYNCHRONOUS}"  # the paper's client and server with EAGLE-2, of which it claims 1.84 times
COLUMNS: tuple[Column, ...] = (
    ("method", "{0.method}"),
    ("tokens/s", lambda row: f"{Spread.of(row.figures.rates).median:.1f}"),
    ("over plain", lambda row: "1" if row.method == PLAIN else _ratio(row.figures.over_plain)),
    (
        "worst",
        lambda row: f"{min(row.figures.over_plain):.2f}" if row.method != PLAIN and row.figures.over_plain else "",
    ),
    ("over EAGLE-2's rounds", lambda row: median_of(row.over_eagle)),
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
    ("joules a token", lambda row: _a_token(row, "joules", 2)),
)
MARKERS = {SYNCHRONOUS: "o", STREAMED: "^"}  # a drafter is a colour, a way to use it a marker
OWN_LOOKS: Mapping[str, dict[str, Any]] = {
    CO_LOCATED: {"color": "black", "marker": "x"},
    ALL: {"color": "crimson", "marker": "D", "linewidth": 3},
}


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method over one link, next to what it is compared with."""

    method: str
    figures: LinkFigures
    over_eagle: Spread | None

    @property
    def forwards(self) -> float:
        """For 100 tokens."""
        return self.figures.a_token("forwards", 100.0) or 0.0

    def gap(self, percent: int) -> str:
        return f"{np.percentile(self.figures.gaps_ms or [0.0], percent):.0f}"


def render(result: Mapping[str, Any]) -> str:
    parts = [facts_line(result), _what(result) + "\n"]
    for link in result["links"]:
        parts += [f"### {link}\n", link_table([each for each in result["rounds"] if each["link"] == link])]
    parts.append(remarks(result["rounds"]))
    return "\n".join(parts)


def _what(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    chains = f"chains of {effort.chain}, or trees of {TREE_NODES}", "chains that grow, or trees"
    sent, streamed = chains if result["has_oracles"] else ("a tree", "trees that grow")
    how = at_temperature(effort.temperature)
    text = (
        f"{effort.asked} questions, each asked of all methods in turn, {how}, on the level {result['level']}; "
        f"answers of {effort.answer_tokens} tokens. Synchronous rounds send {sent} after each verdict; streamed "
        f"drafts are {streamed}. Ratios of tokens a second over the whole answer: median (quartiles). Bytes are those "
        f"of messages. {energy_line(result)}"
    )
    drafters = "; ".join(f"{name}: {said}" for name, said in result["drafters"].items())
    return f"{text}\n\nDrafters: {drafters}."


def link_table(rounds: Sequence[Mapping[str, Any]]) -> str:
    rows, failed = [], []
    for method in dict.fromkeys(name for each in rounds for name in each["answers"]):
        figures = figures_of(rounds, method)
        if figures.answers:
            over_eagle = None if method in (PLAIN, EAGLE) else over(rounds, method, EAGLE)
            rows.append(MethodRow(method, figures, over_eagle))
        else:
            failed.append(f"| {method} | failed |{'  |' * (len(COLUMNS) - 2)}\n")
    return table_of(COLUMNS, rows) + "".join(failed)


def _ratio(values: Sequence[float]) -> str:
    return f"{Spread.of(values):2}" if values else "another text"


def _a_token(row: MethodRow, field: str, digits: int = 0, scale: float = 1.0) -> str:
    """The sum of a field for each token; empty where nothing counts it."""
    value = row.figures.a_token(field, scale)
    return "" if value is None else f"{value:.{digits}f}"


def remarks(rounds: Sequence[Mapping[str, Any]]) -> str:
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
