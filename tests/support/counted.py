"""What tests count and record with: a list that counts what is read of it, so that a step is seen to cost the same in a long
text, a clock that a test moves on, and what toy drafters have in common.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_shared.drafting.drafts import Rows, TokenIds


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class TouchedTokens(Sequence[int]):
    """A repeated field of the same token: NumPy takes it as a whole, and everything else is counted in `touched`."""

    def __init__(self, count: int) -> None:
        self._values = np.ones(count, dtype=np.uint32)
        self.touched = 0

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        found = self._values[index].tolist()
        self.touched += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        for token in self._values.tolist():
            self.touched += 1
            yield token

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._values, dtype=dtype)


class RecordingDrafter:
    """Keeps the text and the positions of the rows of memory and of states; drafting is left to others."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.memory: list[int] = []
        self.states: list[int] = []

    @property
    def token_ids(self) -> TokenIds | None:
        return None

    @property
    def most_depth(self) -> int | None:
        return None

    @property
    def next_position(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def crop(self, length: int) -> None:
        del self.tokens[length:]
        self.memory = [position for position in self.memory if position < length]
        self.states = [position for position in self.states if position < length]

    def append_memory(self, start: int, rows: Rows) -> None:
        self.memory += range(start, start + len(rows))

    def append_reused_state(self, start: int, rows: Rows) -> None:
        self.states += range(start, start + len(rows))

    def catch_up(self, most: int) -> bool:
        return True
