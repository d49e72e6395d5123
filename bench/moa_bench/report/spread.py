"""What repeated measurements say: a median with its quartiles, and ratios of interleaved pairs.

Pure. A ratio is always taken pair by pair, within one run: on a shared machine the two halves of a pair meet the same
disturbances, two medians of two runs do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from moa_shared.errors import InternalError


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of `count` measurements, in the unit of these."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        if not values:
            raise InternalError("There are no measurements to take a spread of.")
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        return cls(round(median, 4), round(low, 4), round(high, 4), len(values))

    def __format__(self, digits: str) -> str:
        """`median (low to high)`, as in f"{spread:2}"."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def paired_ratio(values: Sequence[float], bases: Sequence[float]) -> Spread:
    """Spread of values[i] / bases[i]."""
    if len(values) != len(bases):
        raise InternalError(f"{len(values)} measurements cannot be paired with {len(bases)}.")
    return Spread.of([value / base for value, base in zip(values, bases, strict=True)])


def median_of(spread: Spread | None) -> str:
    """The median with two digits; empty where there is none."""
    return "" if spread is None else f"{spread.median:.2f}"
