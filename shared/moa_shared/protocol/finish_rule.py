"""When an answer ends: the rule that server and client share, and the guard against loops. Pure.

The answer's tokens are looked at one by one: so a path accepted at once ends where single steps would have ended it,
and a resumed answer where the uninterrupted one would have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Sampling, WantedChances

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 64  # of at most four tokens each (the bytes of UTF-8), so that the window below holds it
STOP_WINDOW_TOKENS = 256  # a stop string is looked for in the text of this many last tokens: 64 characters of 4 bytes


class Finish(IntEnum):
    """Why an answer ended; the numbers are those of the wire (moa.v1.Finish)."""

    UNFINISHED = 0
    END_OF_TEXT = 1
    MAX_TOKENS = 2
    STOP = 3
    CONTEXT = 4
    CANCELLED = 5
    DRAINING = 6
    LOOP = 7


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """What the user asked of one answer; ConfigError: a value outside its range."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 0  # of this answer; 0: as the context allows
    stop: tuple[str, ...] = ()  # strings that end the answer; the text shown ends before the first of them
    ignore_end_of_text: bool = False  # continue after end-of-text (for measurements)
    loop_guard: bool = False  # end an answer that only repeats itself (`only_repeats`)
    chances: WantedChances | None = None  # what the asker wants to know of its tokens; None: nothing

    def __post_init__(self) -> None:
        if not 0 <= self.max_tokens < 1 << 32:  # as the wire has it
            raise ConfigError(f"max_tokens is {self.max_tokens}, expected 0 (as the context allows) to 2**32 - 1.")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ConfigError(f"{len(self.stop)} stop strings were given, at most {MAX_STOP_STRINGS} are allowed.")
        for stop in self.stop:
            if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
                raise ConfigError(f"A stop string has {len(stop)} characters, expected 1 to {MAX_STOP_CHARACTERS}.")

    @property
    def decisive_tokens(self) -> int:
        """The newest tokens of an answer that decide whether it ends, beside their number."""
        return max(STOP_WINDOW_TOKENS if self.stop else 1, LOOP_TOKENS if self.loop_guard else 1)


@dataclass(frozen=True, slots=True)
class FinishRule:
    """Decides after each token whether the answer ends with it."""

    settings: AnswerSettings
    answer_start: int  # position of the answer's first token
    context_tokens: int  # the most tokens that a conversation may hold
    end_of_text: frozenset[int]  # token ids that end an answer
    decode: Callable[[Sequence[int]], str]  # text of some tokens (needed only for stop strings)

    def cut(self, answer: Sequence[int], new: Sequence[int], before: int = 0) -> tuple[list[int], Finish]:
        """The part of `new` that belongs to the answer, and why it ends there (UNFINISHED if it continues).

        `answer`: the answer's tokens so far; the last `decisive_tokens` of them are enough. `new`: tokens chosen after
        them. `before`: tokens of the answer that come before `answer`.
        """
        recent = list(answer[-self.settings.decisive_tokens :])
        for taken, token in enumerate(new, 1):
            recent.append(token)
            if (finish := self._after(recent, before + len(answer) + taken)) is not Finish.UNFINISHED:
                return list(new[:taken]), finish
        return list(new), Finish.UNFINISHED

    def finish_of(self, answer: Sequence[int]) -> Finish:
        """Why an answer of these tokens has ended; UNFINISHED if the target has more to say."""
        return self._after(answer[-self.settings.decisive_tokens :], len(answer)) if answer else Finish.UNFINISHED

    def _after(self, recent: Sequence[int], answer_length: int) -> Finish:
        settings = self.settings
        if recent[-1] in self.end_of_text and not settings.ignore_end_of_text:
            return Finish.END_OF_TEXT
        if settings.stop:
            text = self.decode(recent[-STOP_WINDOW_TOKENS:])
            if any(stop in text for stop in settings.stop):
                return Finish.STOP
        if settings.max_tokens and answer_length >= settings.max_tokens:
            return Finish.MAX_TOKENS
        if self.answer_start + answer_length >= self.context_tokens:
            return Finish.CONTEXT
        if settings.loop_guard and answer_length % LOOK_EVERY == 0 and only_repeats(recent):
            return Finish.LOOP
        return Finish.UNFINISHED


LOOP_TOKENS = 512  # the newest of an answer, all of them repeated
LONGEST_RUN = 128  # so that it has been said four times
# The guard looks when an answer's length is a multiple of this: a look takes 20 us, which is then nothing a token.
LOOK_EVERY = 32


def only_repeats(tokens: Sequence[int]) -> bool:
    """Whether the newest of these tokens are one run of tokens, again and again."""
    newest = list(tokens[-LOOP_TOKENS:])
    if len(newest) < LOOP_TOKENS:
        return False
    first, last = newest[0], newest[-1]
    runs = (run for run in range(1, LONGEST_RUN + 1) if newest[run] == first and newest[-1 - run] == last)
    return any(newest[run:] == newest[:-run] for run in runs)
