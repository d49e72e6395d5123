"""What the users ask, and for how long: passages of mixed lengths, the same ones for each number of users.

Pure. Invariant: a user's questions depend on the seed and its number only, so fewer users ask what the first of more
users ask, and every few of them have short and long prompts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.errors import ConfigError

from moa_bench.options import option

GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, fill 0 to 1 evenly at every moment


@dataclass(frozen=True, slots=True)
class UsersEffort:
    """What users of one server ask.

    Args:
        apart_seconds: in which several users begin, one after the other; 0: at once. If answers are equally long too,
            users go on in step: all prompts are read together, and all answers end together.
        waits_for_all: they ask on until each has had a whole answer. A time that ends before says little.
    """

    users: tuple[int, ...] = option((1, 4, 16, 64), "Only so many users (repeat, ascending).", least=1, most=256)
    seconds: float = option(16.0, "For which they ask, in each way.", least=1)
    prompts: int = option(2, "Of each user, asked in turn.", least=1)
    answer_tokens: int = option(64, "Of each answer.", "--tokens", least=2)
    prompt_tokens: tuple[int, int] = option((50, 4000), "Of prompts.", metavar="SHORTEST LONGEST", least=1)
    think_seconds: float = option(0.0, "After each answer, on average.", "--think", metavar="SECONDS", least=0)
    seed: int = option(0, "Of prompts, thinking, links and drafts.")
    apart_seconds: float = 0.0
    draft_ms: float = 5.0  # of a draft step of an oracle
    waits_for_all: bool = False

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")
        shortest, longest = self.prompt_tokens
        if shortest > longest:
            raise ConfigError(
                f"Prompts of {shortest} to {longest} tokens do not exist.",
                hint="Give --prompt-tokens the shortest length, then the longest.",
            )


def length_at(share: float, lengths: tuple[int, int]) -> int:
    """The length below which this share of prompts is: from shortest to longest, evenly on a logarithmic scale."""
    shortest, longest = lengths
    return round(shortest * float((longest / shortest) ** share))


def make_questions(
    passage: Sequence[int], lengths: tuple[int, int], users: int, each: int, seed: int
) -> list[list[list[int]]]:
    """Prompts [users][each] as token ids: pieces of a passage, repeated where it is too short.

    Each begins elsewhere, so that no two share a beginning for long.
    """
    offset = random.Random(seed).random()
    questions = []
    for user in range(users):
        rng = random.Random(f"{seed}:{user}")
        shares = [(offset + GOLDEN * user + number / each) % 1.0 for number in range(each)]
        questions.append([_piece(passage, rng.randrange(len(passage)), length_at(share, lengths)) for share in shares])
    return questions


def _piece(passage: Sequence[int], start: int, length: int) -> list[int]:
    return [passage[(start + place) % len(passage)] for place in range(length)]
