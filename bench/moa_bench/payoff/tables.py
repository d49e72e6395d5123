"""What `moa-bench payoff` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moa_bench.capacity.ways import Way
from moa_bench.report.report import facts_line, table

PLAIN, EVERYTHING = Way("plain").name, Way("everything").name
LEAST = 0.97  # the aim: never slower than this


def ratios(cell: Mapping[str, Any]) -> dict[str, float]:
    """Tokens a second of all users in each way, over plain serving's mean before and after."""
    plain = cell["ways"][PLAIN]
    base = sum(float(each["tokens_per_s"]) for each in plain) / len(plain)
    return {
        name: float(found[0]["tokens_per_s"]) / base
        for name, found in cell["ways"].items()
        if name != PLAIN and not found[0]["other_texts"]
    }


def best(cell: Mapping[str, Any]) -> tuple[str, float]:
    """The fastest way in a cell, and its ratio; plain serving where no other is faster."""
    return max(((PLAIN, 1.0), *ratios(cell).items()), key=lambda pair: pair[1])


def render(result: Mapping[str, Any]) -> str:
    """A row for each round trip and number of users."""
    rounds, effort = result["rounds"], result["effort"]
    names = [name for name in dict.fromkeys(name for each in rounds for name in each["ways"]) if name != PLAIN]
    rows = []
    for cell in rounds:
        found = ratios(cell)
        plain = cell["ways"][PLAIN]
        rows.append(
            [
                f"{cell['rtt_ms']:g}",
                cell["users"],
                f"{sum(each['tokens_per_s'] for each in plain) / len(plain):.1f}",
                *(f"{found[name]:.2f}" if name in found else "another text" for name in names),
                best(cell)[0],
            ]
        )
    what = (
        f"All users ask for {effort['seconds']:g} s in each way, answers of {effort['answer_tokens']} tokens on the "
        f"level {result['level']}; drafter {result['drafter']}. Tokens a second of all users, reading prompts "
        "included, over plain serving's before and after."
    )
    if result["padding"]:
        what += f" {result['padding']}"
    head = ["round trip, ms", "users", "plain, tokens/s", *names, "best"]
    return "\n".join([facts_line(result), what + "\n", table(head, rows), told(rounds)])


def told(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Whether the programs as they are ever lose."""
    found = {
        f"{cell['rtt_ms']:g} ms and {cell['users']} users": ratios(cell)[EVERYTHING]
        for cell in rounds
        if EVERYTHING in ratios(cell)
    }
    below = [f"{where} ({ratio:.2f})" for where, ratio in found.items() if ratio < LEAST]
    if not below:
        return f"With everything on no cell is below {LEAST:g}.\n"
    return f"With everything on, below {LEAST:g}: {', '.join(below)}.\n"
