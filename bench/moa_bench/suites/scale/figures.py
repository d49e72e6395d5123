"""What was simulated of users on GPUs: what each gets, and how many a speed allows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from moa_bench.users import figures

Way = Literal["plain", "co-located", "synchronous", "streamed", "auto"]
Limit = Literal["speed", "memory", "simulated"]
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
    limit: Limit  # what keeps more from it; memory: that of keys and values


def users_at(rate: float, measured: Sequence[Load], most: float = float("inf")) -> Found:
    """The number of users up to which each gets `rate`.

    Args:
        measured: by number of users, ascending.
        most: that fit.
    """
    found = figures.users_at(rate, [(load.users, load.rate) for load in measured])
    limit: Limit = "memory" if found.users >= most else "simulated" if found.at_least else "speed"
    return Found(rate, min(found.users, most), limit)


def rate_at(users: float, measured: Sequence[Load]) -> Load:
    """What each of so many users gets, between two simulated numbers; outside them: of the nearest one."""
    numbers = [load.users for load in measured]
    columns = zip(*((load.rate, load.up_kbit_s, load.down_kbit_s) for load in measured), strict=True)
    return Load(round(users), *(1 / float(np.interp(users, numbers, 1 / np.array(each))) for each in columns))
