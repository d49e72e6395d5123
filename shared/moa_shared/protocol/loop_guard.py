"""The guard against an answer that only repeats itself: the same run of tokens again and again, until a limit ends it.

Pure. The numbers were tried on greedy and sampled answers of the default model. Its loops repeat 1 to 71 tokens (from
one word to a paragraph) and never end by themselves. Most of what people ask for and is as regular is shorter: a grid
of 20 by 20 dots is 420 tokens, one word 200 times 200 to 400, a sentence 30 times 360, and the rows of tables, lists
and programs differ by a number or a name. Some of it is longer (a list of 200 zeros is 600 tokens): for that the guard
can be turned off.
"""

from __future__ import annotations

from collections.abc import Sequence

LOOP_TOKENS = 512  # the newest of an answer, all of them repeated
LONGEST_RUN = 128  # so that it has been said four times
# The guard looks when an answer's length is a multiple of this: a look takes 20 us, which is then nothing a token.
LOOK_EVERY = 32


def guard_looks(answer_length: int) -> bool:
    """Whether the guard looks at an answer of this length."""
    return answer_length >= LOOP_TOKENS and answer_length % LOOK_EVERY == 0


def only_repeats(tokens: Sequence[int]) -> bool:
    """Whether the newest of these tokens are one run of tokens, again and again."""
    newest = list(tokens[-LOOP_TOKENS:])
    if len(newest) < LOOP_TOKENS:
        return False
    first, last = newest[0], newest[-1]
    runs = (run for run in range(1, LONGEST_RUN + 1) if newest[run] == first and newest[-1 - run] == last)
    return any(newest[run:] == newest[:-run] for run in runs)
