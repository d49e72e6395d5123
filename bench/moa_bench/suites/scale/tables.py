"""What was simulated of users on GPUs, and how far the simulation is from what was measured, as Markdown. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report import Column, table, table_of
from moa_bench.suites.capacity.figures import users_at

RATES = (10.0, 20.0, 30.0, 50.0)
NAMES = {"plain": "plain serving", "streamed": "devices' drafts, streamed", "auto": "ours (auto)"}
TOLERANCE = 0.15
CHECK: tuple[Column, ...] = (
    ("measured by, over", "{0.result}, {0.link}"),
    ("way", "{0.way}"),
    ("measured", "{0.measured:.2f}"),
    ("simulated", "{0.simulated:.2f}"),
    ("error", "{0.error:+.0%}"),
    (f"within {TOLERANCE:.0%}", lambda row: "yes" if abs(row.error) <= TOLERANCE else "no"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What each of a number of users gets, in tokens a second."""

    users: int
    rate: float


def render(result: Mapping[str, Any]) -> str:
    parts = [_world(world) for world in result["worlds"]]
    parts.append("Every assumption.\n\n" + table(["of", "what", "value", "kind", "source"], result["assumptions"]))
    return "\n".join([*parts, _check(result["check"])])


def _world(world: Mapping[str, Any]) -> str:
    lines, gpus = [], world["gpus"]
    for way in world["ways"]:
        loads = [Load(**load) for load in way["loads"]]
        cells = [at_rate(rate, loads, way["fit"]) for rate in RATES]
        users = cells[RATES.index(20.0)][0]
        dollars = f"{world['price'] * gpus / (users * 20.0 * 3600) * 1e6:.2f}" if users else ""
        lines.append([NAMES[way["way"]], *(_words(*cell, gpus) for cell in cells), dollars])
    head = ["way", *(f"users a GPU at {rate:g} tokens/s" for rate in RATES), "$ a million tokens at 20 tokens/s"]
    return f"{world['name']}; m: limited by memory, not by speed.\n\n" + table(head, lines)


def at_rate(rate: float, loads: Sequence[Load], most: float) -> tuple[float, str]:
    """The number of users up to which each gets `rate`, and what keeps more from it.

    Args:
        loads: by number of users, ascending.
        most: that fit.
    """
    found = users_at(rate, [(load.users, load.rate) for load in loads])
    if found.users >= most:
        return most, "memory"
    return found.users, "simulated" if found.at_least else "speed"


def _words(users: float, limit: str, gpus: int) -> str:
    sign = {"speed": "", "memory": " m", "simulated": " or more"}[limit]
    return f"{users / gpus:.0f}{sign}" if users else "none"


def _check(rows: Sequence[Any]) -> str:
    if not rows:
        return "Nothing to check yet: `moa-bench split --pin --shape 8b` measures what is simulated.\n"
    within = sum(abs(row.error) <= TOLERANCE for row in rows)
    origins: dict[str, dict[str, None]] = {}
    for row in rows:
        origins.setdefault(row.origin, {})[row.result] = None
    sources = "; ".join(f"{', '.join(results)} ({origin})" for origin, results in origins.items())
    note = (
        f"Tokens a second after the first, over plain streaming's, of {sources}: {within} of {len(rows)} are within "
        f"{TOLERANCE:.0%} of the simulation, which has the measured step and rows, the same link, and the same luck of "
        "the oracle.\n"
    )
    return "\n".join([note, table_of(CHECK, rows)])
