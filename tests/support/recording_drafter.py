"""What toy drafters of a conversation have in common: the text, and which rows they were given."""

from collections.abc import Sequence

from moa_shared.drafting.base import Rows, TokenIds


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
