"""What the target writes in a simulation, and what a drafter makes of it: an oracle that is right at a given rate.

Whether it is right at a position was drawn for that position only, so another schedule meets the same luck.
"""

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

PROMPT = (1, 2, 3)
VOCAB_SIZE = 16_384  # token ids of at most two bytes on the wire, as those of frequent tokens
WRONG = 0  # what the drafter says where it is wrong; the target never does
SPARE = 256  # positions that drafts may reach beyond the end


class ScriptedText:
    """A text of `tokens` tokens after the prompt.

    Args:
        right: whether the drafter is right about the answer's token of that number.
    """

    def __init__(self, tokens: int, right: Callable[[int], bool], prompt: Sequence[int] = PROMPT) -> None:
        length = len(prompt) + tokens + SPARE
        self.tokens = [*prompt, *(1000 + position % 1000 for position in range(len(prompt), length))]
        self._right = [right(position - len(prompt)) for position in range(length)]

    def draft_on(self, committed: int, draft: Sequence[int]) -> int:
        """What the drafter says after so many committed tokens and a chain of draft tokens."""
        position = committed + len(draft)
        if position >= len(self.tokens):
            return WRONG
        return self.tokens[position] if WRONG not in draft and self._right[position] else WRONG

    def choose(self, positions: Sequence[int]) -> list[int]:
        return [self.tokens[position] for position in positions]


def by_chance(acceptance: float, seed: int) -> Callable[[int], bool]:
    """A drafter that is right about each token with this probability."""
    return lambda number: _draw(seed, number) < acceptance


@lru_cache(maxsize=1 << 14)  # a few seeds' long texts: each is simulated by many rules and over many links
def _draw(seed: int, number: int) -> float:
    return random.Random(f"{seed}:{number}").random()
