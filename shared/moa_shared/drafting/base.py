"""The interface that the drafting algorithms need from a drafter."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int64]


class Drafter(Protocol):
    """A model that guesses what the target will say next."""

    @property
    def token_ids(self) -> TokenIds | None: ...  # the target's token of each column; None: the same

    @property
    def tokens(self) -> Sequence[int]: ...  # the committed ones

    @property
    def next_position(self) -> int: ...  # of the first token to guess: the number of committed tokens

    # The levels that come with the first one, and the most that a draft has; None: each takes a step, no limit.
    @property
    def most_depth(self) -> int | None: ...

    def begin(self) -> Rows:
        """Drops any draft under way; logits [1, columns], float32, of the token after the newest committed one."""

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Adds nodes (parents: numbers in order of addition, -1 the root); logits after each, [nodes, columns]."""

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """Appends committed tokens; former numbers of the draft nodes below the last of them, now numbered 0, 1, ...

        None: no draft is left, the next must `begin`.
        """


class ConversationDrafter(Drafter, Protocol):
    """The state of one conversation's drafter, whatever its kind."""

    @property
    def tokens(self) -> list[int]: ...

    def crop(self, length: int) -> None: ...  # forgets everything from this position on

    def append_memory(self, start: int, rows: Rows) -> None:
        """Adds memory rows, [rows, memory width] float32, of positions from `start`."""

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the state that enters the first reused layer, [rows, hidden size] float32."""

    def catch_up(self, most: int) -> bool:
        """Reads up to `most` committed tokens ahead of the next draft; whether that can begin without reading many."""
