"""Tokens as protobuf gives them, which count how many of them Python has looked at one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt


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
