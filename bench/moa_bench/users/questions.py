"""What the users ask: passages of mixed lengths, the same ones for each number of users.

Pure. Invariant: a user's questions depend on the seed and its number only, so fewer users ask what the first of more
users ask, and every few of them have short and long prompts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.errors import ConfigError

GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, fill 0 to 1 evenly at every moment


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts, spread evenly on a logarithmic scale.

    Args:
        shortest, longest: in tokens.
    """

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ConfigError(
                f"Prompts of {self.shortest} to {self.longest} tokens do not exist.",
                hint="Give --prompt-tokens the shortest length, then the longest.",
            )

    def at(self, share: float) -> int:
        """The length below which this share of the lengths is."""
        return round(self.shortest * float((self.longest / self.shortest) ** share))


def make_questions(passage: Sequence[int], lengths: Lengths, users: int, each: int, seed: int) -> list[list[list[int]]]:
    """Prompts [users][each] as token ids: pieces of a passage, repeated where it is too short.

    Each begins elsewhere, so that no two share a beginning for long.
    """
    offset = random.Random(seed).random()
    questions = []
    for user in range(users):
        rng = random.Random(f"{seed}:{user}")
        shares = [(offset + GOLDEN * user + number / each) % 1.0 for number in range(each)]
        questions.append([_piece(passage, rng.randrange(len(passage)), lengths.at(share)) for share in shares])
    return questions


def _piece(passage: Sequence[int], start: int, length: int) -> list[int]:
    return [passage[(start + place) % len(passage)] for place in range(length)]
