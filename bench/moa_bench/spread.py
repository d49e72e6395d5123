"""Repeated measurements: taken in turn, so that disturbances hit all alike, and told as medians with quartiles.

A ratio is always taken pair by pair, within one run: on a shared machine the two halves of a pair meet the same
disturbances, two medians of two runs do not.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from moa_shared.errors import InternalError
from moa_shared.programs.machine import collector_paused


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            raise InternalError("There are no measurements to take a spread of.")
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        return cls(round(median, 4), round(low, 4), round(high, 4), len(values))

    def __format__(self, digits: str) -> str:
        """`median (low to high)`, as in f"{spread:2}"."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def paired_ratio(values: Sequence[float], bases: Sequence[float]) -> Spread:
    return Spread.of([value / base for value, base in zip(values, bases, strict=True)])


def median_of(spread: Spread | None) -> str:
    """The median with two digits; empty where there is none."""
    return "" if spread is None else f"{spread.median:.2f}"


def collect_interleaved(
    cases: Mapping[str, Callable[[], float]], repeats: int, *, warm_up: int = 2
) -> dict[str, list[float]]:
    """What each case says of itself, [repeats] each; entry i of all of them was measured in round i.

    The order rotates by one from round to round, so that no case always follows the same other one.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    with without_collector():
        for turn in range(-warm_up, repeats):
            for name in rotated(list(cases), turn):
                measured = cases[name]()
                if turn >= 0:
                    taken[name].append(measured)
    return taken


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, beginning with another one in each turn."""
    return [names[(place + turn) % len(names)] for place in range(len(names))]


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    with collector_paused():
        yield
