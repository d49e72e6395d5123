"""What `moa-bench split` found, as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread, ratio_text
from moa_bench.suites.split import closed_form
from moa_bench.suites.split.figures import figures_of, over
from moa_bench.suites.split.names import ALL, ORACLES, PLAIN, SYNCHRONOUS

LOOPBACK = re.compile(r"127\.0\.0\.1:\d+")
EAGLE = f"EAGLE-2: {SYNCHRONOUS}"  # the paper's client and server with EAGLE-2, of which it claims 1.84 times
HEAD = [
    "method", "tokens/s", "over plain", "worst", "closed form", "over EAGLE-2's rounds", "first token",
    "tokens a forward", "forwards a 100 tokens", "gap, ms: median", "95 %", "99 %", "up a token", "down a token",
    "server's CPU, ms a token", "device's",
]  # fmt: skip


def render(result: Mapping[str, Any]) -> str:
    """A table for each link, and what is held of the aims."""
    parts = [facts_line(result), _what(result) + "\n"]
    for link in result["links"]:
        forms = closed_form.over_plain(result["rounds"], link, result["links"])
        parts += [f"### {link}\n", link_table([each for each in result["rounds"] if each["link"] == link], forms)]
    parts.append(remarks(result["rounds"]))
    return "\n".join(parts)


def _what(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    chain = f"chains of {effort.chain}"
    sent, streamed = (chain, "chains that grow") if result["name"] == ORACLES else ("a tree", "trees that grow")
    text = (
        f"{effort.questions} questions, each asked of all methods in turn, greedy, on the level {result['level']}; "
        f"answers of {effort.answer_tokens} tokens. Synchronous rounds send {sent} after each verdict; one round "
        f"ahead sends {chain}, and drafts the next one meanwhile; streamed drafts are {streamed}. Ratios of tokens a "
        "second over the whole answer: median (quartiles). The closed form is what arithmetic "
        f"makes of the times over {closed_form.BASE} and of the tokens that a forward brought over this link; of one "
        "round ahead, at most."
    )
    drafters = "; ".join(f"{name}: {said}" for name, said in result["drafters"].items())
    return f"{text}\n\nDrafters: {drafters}."


def link_table(rounds: Sequence[Mapping[str, Any]], forms: Mapping[str, float]) -> str:
    """A row for each method, of rounds over one link; `forms`: closed forms by method, over plain streaming."""
    rows = []
    for method in dict.fromkeys(name for each in rounds for name in each["answers"]):
        figures = figures_of(rounds, method)
        if not figures.answers:
            rows.append([method, "failed", *[""] * (len(HEAD) - 2)])
            continue
        gaps = np.percentile(figures.gaps_ms or [0.0], (50, 95, 99))
        forwards = figures.a_token("forwards", 100.0) or 0.0
        against_eagle = None if method in (PLAIN, EAGLE) else over(rounds, method, EAGLE)
        rows.append(
            [
                method,
                f"{Spread.of(figures.rates).median:.1f}",
                "1" if method == PLAIN else _ratio(figures.over_plain),
                "" if method == PLAIN or not figures.over_plain else f"{min(figures.over_plain):.2f}",
                f"{forms[method]:.2f}" if method in forms else "",
                "" if against_eagle is None else f"{against_eagle.median:.2f}",
                "1" if method == PLAIN else _ratio(figures.first_over_plain),
                f"{100.0 / forwards:.2f}",
                f"{forwards:.0f}",
                *(f"{gap:.0f}" for gap in gaps),
                _bytes(figures.a_token("up")),
                _bytes(figures.a_token("down")),
                f"{figures.a_token('server_cpu_s', 1e3):.1f}",
                f"{figures.a_token('own_cpu_s', 1e3):.1f}",
            ]
        )
    return table(HEAD, rows)


def _ratio(values: Sequence[float]) -> str:
    return ratio_text(Spread.of(values)) if values else "another text"


def _bytes(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


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
