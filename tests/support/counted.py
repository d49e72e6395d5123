"""What tests count with: a list that counts what is read of it, so that a step is seen to cost the same in a long text,
and a clock that a test moves on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt


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


class TouchedTokens(Sequence[int]):
    """A repeated field of the same token: NumPy takes it as a whole, and everything else is counted in `touched`."""

    def __init__(self, count: int, token: int = 1) -> None:
        self._values = np.full(count, token, dtype=np.uint32)
        self.touched = 0

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            chosen: list[int] = self._values[index].tolist()
            self.touched += len(chosen)
            return chosen
        self.touched += 1
        return int(self._values[index])

    def __iter__(self) -> Iterator[int]:
        for token in self._values.tolist():
            self.touched += 1
            yield token

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._values, dtype=dtype)
