"""What tests count with: a list that counts what is read of it, so that a step is seen to cost the same in a long text,
and a clock that a test moves on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class CountedList(list[Any]):
    """Counts the elements that slices, iteration and comparison read."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        self.read += len(self)
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self.read += len(self)
        return super().__eq__(other)


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
