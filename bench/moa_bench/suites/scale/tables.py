"""What was simulated, as Markdown: cases, and assumptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from moa_bench.report.report import table
from moa_bench.suites.scale.figures import NAMES, Found, Load, rate_at, users_at

RATES = (10.0, 20.0, 30.0, 50.0)
LOADS = (16, 64)
AIM = 2.2


def render(result: Mapping[str, Any]) -> str:
    parts = [_world(world) for world in result["worlds"]]
    parts.append(_aim(result["worlds"]))
    parts.append("Every assumption.\n\n" + table(["of", "what", "value", "kind", "source"], result["assumptions"]))
    return "\n".join(parts)


def loads_of(way: Mapping[str, Any]) -> list[Load]:
    return [Load(**load) for load in way["loads"]]


def _world(world: Mapping[str, Any]) -> str:
    head = ["way", *(f"users a GPU at {rate:g} tokens/s" for rate in RATES)]
    head += [f"tokens/s of each of {users} users a GPU" for users in LOADS]
    head += ["$ a million tokens at 20 tokens/s", "kbit/s a user there, up", "down"]
    lines = []
    for way in world["ways"]:
        if way["acceptance"] not in (None, world["paper"]):
            continue
        served, gpus = loads_of(way), world["gpus"]
        found = [users_at(rate, served, way["fit"]) for rate in RATES]
        at = found[RATES.index(20.0)]
        dollars = "" if not at.users else f"{price(world['price'], gpus, at):.2f}"
        there = rate_at(at.users, served)
        line: list[object] = [NAMES[way["way"]], *(_users(each, gpus) for each in found)]
        for users in LOADS:
            fits = users * gpus <= way["fit"]
            line.append(f"{rate_at(users * gpus, served).rate:.0f}" if fits else "do not fit")
        lines.append([*line, dollars, f"{there.up_kbit_s:.1f}", f"{there.down_kbit_s:.0f}"])
    costs = world["costs"]
    note = (
        f"{world['name']}; acceptance {world['paper']:g}; m: limited by memory, not by speed.\n"
        f"A forward takes {costs['launch_ms']:.1f} ms to launch and {costs['weights_ms']:.1f} ms to read the weights, "
        f"{costs['context_ms']:.2f} ms more for each answer and {costs['row_ms']:.3f} ms for each row.\n"
        f"A draft step takes {costs['drafter_ms']:.1f} ms beside it and {world['device_draft_ms']:.1f} ms on a device."
        "\n\n"
    )
    return note + table(head, lines)


def price(dollars_an_hour: float, gpus: int, at: Found) -> float:
    """Dollars a million tokens, of GPUs that are full all the time."""
    return dollars_an_hour * gpus / (at.users * at.rate * 3600) * 1e6


def _users(found: Found, gpus: int) -> str:
    users = found.users / gpus
    sign = {"speed": "", "memory": " m", "simulated": " or more"}[found.limit]
    return f"{users:.0f}{sign}" if users else "not one"


def ratios(world: Mapping[str, Any], rate: float, way: str, over: str) -> list[tuple[float, float]]:
    """By acceptance: users of a way over those of another at one speed, memory left aside."""
    found = []
    for each in world["ways"]:
        if each["way"] != way:
            continue
        acceptance = each["acceptance"]
        other = next(one for one in world["ways"] if one["way"] == over and one["acceptance"] in (None, acceptance))
        users, others = users_at(rate, loads_of(each)), users_at(rate, loads_of(other))
        if users.users and others.users and "simulated" not in (users.limit, others.limit):
            found.append((acceptance, users.users / others.users))
    return sorted(found)


def reached_at(points: Sequence[tuple[float, float]], aim: float = AIM) -> float | None:
    """The least acceptance at which a ratio is reached, between two simulated ones; None: at none of them."""
    before: tuple[float, float] | None = None
    for acceptance, ratio in points:
        if ratio >= aim:
            if before is None:
                return acceptance
            return before[0] + (aim - before[1]) / (ratio - before[1]) * (acceptance - before[0])
        before = acceptance, ratio
    return None


def _aim(worlds: Sequence[Mapping[str, Any]]) -> str:
    head = ["case", "tokens/s"]
    for way in ("streamed", "auto"):
        head += [f"{NAMES[way]}: most over plain's", f"{AIM} times from acceptance"]
    head.append("streamed over co-located, at the highest acceptance")
    lines = []
    for world in worlds:
        for rate in RATES:
            line: list[object] = [world["name"], f"{rate:g}"]
            for way in ("streamed", "auto"):
                points = ratios(world, rate, way, "plain")
                reached = reached_at(points)
                line.append(f"{max(ratio for _, ratio in points):.2f}" if points else "")
                line.append(f"{reached:.2f}" if reached is not None else "at none" if points else "")
            over = ratios(world, rate, "streamed", "co-located")
            lines.append([*line, f"{over[-1][1]:.2f}" if over else ""])
    return f"Where {AIM} times the users of plain serving are reached at equal speed, memory left aside.\n\n" + table(
        head, lines
    )
