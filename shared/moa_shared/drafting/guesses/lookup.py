"""Prompt look-up: what followed the last time that the newest tokens occurred in the conversation.

Pure. State: the text, and for each run of up to `longest` tokens the position after its newest occurrence with a
continuation. Source: https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 3  # tokens that must agree, tried from the longest, as in the method's first description


class TextIndex:
    """A text in which runs of tokens are found at once.

    Args:
        longest: of the runs.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.tokens: list[int] = []
        self._longest = longest
        self._after: dict[tuple[int, ...], int] = {}

    def restart(self, tokens: Sequence[int]) -> None:
        """Replaces the text with these tokens."""
        self.tokens = []
        self._after = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        text = self.tokens
        for token in tokens:
            position = len(text)
            for size in range(1, min(self._longest, position) + 1):
                self._after[tuple(text[position - size :])] = position
            text.append(token)

    def matched(self, ahead: Sequence[int] = (), shortest: int = 1) -> tuple[int, int]:
        """Position after the newest occurrence of the longest run that ends the text and `ahead`, and its length.

        Args:
            ahead: tokens after the text, such as a draft; only the text is searched.
            shortest: the shortest run that counts; without one, both numbers are 0.
        """
        newest = [*self.tokens[-self._longest :], *ahead][-self._longest :]
        for size in range(len(newest), shortest - 1, -1):
            position = self._after.get(tuple(newest[-size:]))
            if position is not None:
                return position, size
        return 0, 0

    def continuation(self, length: int, ahead: Sequence[int] = (), shortest: int = 1) -> list[int]:
        """Up to `length` tokens that followed the longest such run; empty if there is none."""
        position, size = self.matched(ahead, shortest)
        return self.tokens[position : position + length] if size else []
