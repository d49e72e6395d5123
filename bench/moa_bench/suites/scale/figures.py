"""What was simulated of users on GPUs: what each gets, how many a speed allows, and what assumptions do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

TOLERANCE = 0.15  # of what was measured, within which the simulator should be
Way = Literal["plain", "co-located", "synchronous", "streamed", "auto"]
WAYS: tuple[Way, ...] = get_args(Way)
NAMES: dict[Way, str] = {
    "plain": "plain serving",
    "co-located": "co-located drafting",
    "synchronous": "devices' drafts, synchronous",
    "streamed": "devices' drafts, streamed",
    "auto": "ours (auto)",
}


@dataclass(frozen=True, slots=True)
class Load:
    """What each of a number of users gets.

    Args:
        up_kbit_s, down_kbit_s: of a user, memory rows included where its device drafts.
    """

    users: int
    rate: float
    up_kbit_s: float
    down_kbit_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """How many users get a speed.

    Args:
        users: on all GPUs.
        limit: what keeps more from it: their speed, their keys and values, or that no more were simulated.
    """

    rate: float
    users: float
    limit: Literal["speed", "memory", "simulated"]


def users_at(rate: float, measured: Sequence[Load], most: float = float("inf")) -> Found:
    """The number of users up to which each gets `rate`, between two simulated ones by their milliseconds a token.

    Args:
        measured: by number of users, ascending.
        most: that fit.
    """
    users, before = 0.0, None
    for load in measured:
        if load.rate < rate:
            if before is not None:
                slow, fast, aim = 1 / load.rate, 1 / before.rate, 1 / rate
                users = before.users + (aim - fast) / (slow - fast) * (load.users - before.users)
            return Found(rate, round(min(users, most), 1), "speed" if users < most else "memory")
        users, before = float(load.users), load
    return Found(rate, min(users, most), "memory" if users >= most else "simulated")


def rate_at(users: float, measured: Sequence[Load]) -> Load:
    """What each of so many users gets, between two simulated numbers; outside them: of the nearest one."""
    before = measured[0]
    for load in measured:
        if load.users >= users:
            if load.users == before.users:
                return load
            share = (users - before.users) / (load.users - before.users)
            values = (
                1 / ((1 - share) / first + share / second)
                for first, second in (
                    (before.rate, load.rate),
                    (before.up_kbit_s, load.up_kbit_s),
                    (before.down_kbit_s, load.down_kbit_s),
                )
            )
            return Load(round(users), *values)
        before = load
    return before


@dataclass(frozen=True, slots=True)
class Effect:
    """What one assumption does.

    Args:
        halved, doubled: users a GPU with it.
        swing: how many times as many users the better of the two serves.
    """

    name: str
    halved: float
    doubled: float
    swing: float


def ranked(effects: list[Effect]) -> list[Effect]:
    """Most effect first."""
    return sorted(effects, key=lambda each: (-each.swing, -abs(each.doubled - each.halved), each.name))
