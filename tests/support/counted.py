"""A list that counts what is read of it, so that a test can show that a step costs the same in a long text."""

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
