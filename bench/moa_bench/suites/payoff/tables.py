"""What `moa-bench payoff` found, as Markdown."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from moa_bench.report.report import facts_line, table
from moa_bench.users.strategies import Strategy

PLAIN, EVERYTHING = Strategy("plain").name, Strategy("everything").name
LEAST = 0.97  # the aim: never slower than this


def ratios(cell: Mapping[str, Any]) -> dict[str, float]:
    """Tokens a second of all users in each way, over plain serving's before and after it: medians over the rounds.

    Ways that changed a text are left out.
    """
    return {name: median(found) for name, found in _by_round(cell).items()}


def _by_round(cell: Mapping[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for ways in cell["rounds"]:
        plain = _plain(ways)
        for name, measured in ways.items():
            if name != PLAIN:
                found.setdefault(name, []).append(measured[0]["tokens_per_s"] / plain)
    changed = {name for ways in cell["rounds"] for name, measured in ways.items() if measured[0]["other_texts"]}
    return {name: each for name, each in found.items() if name not in changed}


def _plain(ways: Mapping[str, Any]) -> float:
    return fmean(each["tokens_per_s"] for each in ways[PLAIN])


def best(cell: Mapping[str, Any]) -> tuple[str, float]:
    """The fastest way in a cell, and its ratio; plain serving where no other is faster."""
    return max(((PLAIN, 1.0), *ratios(cell).items()), key=lambda pair: pair[1])


def render(result: Mapping[str, Any]) -> str:
    cells, effort = result["cells"], result["effort"]
    names = [name for name in cells[0]["rounds"][0] if name != PLAIN]
    rows = [
        [
            f"{cell['rtt_ms']:g}",
            cell["users"],
            f"{fmean(_plain(ways) for ways in cell['rounds']):.1f}",
            *(_with_range(_by_round(cell).get(name)) for name in names),
            best(cell)[0],
        ]
        for cell in cells
    ]
    what = (
        f"All users ask for {effort.seconds:g} s in each way, {effort.rounds} times in turn; answers of "
        f"{effort.answer_tokens} tokens on the level {result['level']}; drafter {result['drafter']}. "
        "Tokens a second of all users, reading prompts included, over plain serving's before and after: "
        "medians of the rounds, and their range."
    )
    head = ["round trip, ms", "users", "plain, tokens/s", *names, "best"]
    return "\n".join([facts_line(result), what + "\n", table(head, rows), told(cells)])


def _with_range(found: Sequence[float] | None) -> str:
    if found is None:
        return "another text"
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def told(cells: Sequence[Mapping[str, Any]]) -> str:
    """Whether the programs as they are ever lose; nothing where they were not measured."""
    if not any(EVERYTHING in each["rounds"][0] for each in cells):
        return ""
    found = {
        f"{cell['rtt_ms']:g} ms and {cell['users']} users": ratios(cell)[EVERYTHING]
        for cell in cells
        if EVERYTHING in ratios(cell)
    }
    below = [f"{where} ({ratio:.2f})" for where, ratio in found.items() if ratio < LEAST]
    if not below:
        return f"With everything on no cell is below {LEAST:g}.\n"
    return f"With everything on, below {LEAST:g}: {', '.join(below)}.\n"
