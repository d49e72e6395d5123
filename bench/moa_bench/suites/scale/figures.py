"""What was simulated of users on GPUs: what each gets, and how many a speed allows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

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
    """What each of a number of users gets."""

    users: int
    rate: float
    up_kbit_s: float
    down_kbit_s: float  # memory rows included where the device drafts


@dataclass(frozen=True, slots=True)
class Found:
    """How many users get a speed."""

    rate: float
    users: float  # on all GPUs
    limit: Literal["speed", "memory", "simulated"]  # what keeps more from it; memory: that of keys and values


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
