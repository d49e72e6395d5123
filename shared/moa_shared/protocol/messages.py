"""When an answer ends, by the rule of both ends, and one conversation's messages as both ends hold them. Pure.

The answer's tokens are looked at one by one: so a path accepted at once ends where single steps would have ended it,
and a resumed answer where the uninterrupted one would have. `protocol.protobuf_messages` makes protobuf of messages.
Positions are absolute: token t of the conversation, from 0. `base` is the position of a message's first token, and
`prefix_hash` the hash of all tokens before it, but for an Ask its low half: a repeated or late one changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Sampling, TokenChances, WantedChances

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 64  # of at most four tokens each (the bytes of UTF-8), so that the window below holds it
STOP_WINDOW_TOKENS = 256  # a stop string is looked for in the text of this many last tokens: 64 characters of 4 bytes


class Codec(IntEnum):
    """How rows are coded; the numbers are those of the wire (moa.v1.Codec)."""

    BF16 = 1
    INT8 = 2
    INT4 = 3


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


class Plane(IntEnum):
    """Which rows a Memory message holds; the numbers are those of the wire (moa.v1.Plane)."""

    MEMORY = 0  # cross-attention keys and values, un-rotated; of an assistant the target's own
    REUSED_STATE = 1  # the state that enters the first reused layer; of an assistant the target's last hidden state


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft nodes `first_node` and following of the tree that hangs below the token at `base` - 1."""

    epoch: int  # grows whenever the client throws draft nodes away
    base: int
    prefix_hash: int  # 0 if the frame with node 0 has given it
    first_node: int
    tokens: Sequence[int]
    parents: Sequence[int] = ()  # node numbers, -1 for the root; empty: each node follows the one before it


@dataclass(frozen=True, slots=True)
class Ask:
    """A turn to append and an answer to begin, or to continue."""

    id: int  # the client's number of the question, from 1; a resumed answer keeps it
    base: int
    prefix_hash: int
    tokens: Sequence[int]
    settings: AnswerSettings
    answer_start: int = 0  # where the answer's own tokens begin; 0: after `tokens`
    provisional: Draft | None = None  # the part of the answer that the client has written without the server
    traceparent: str = ""  # of the client's span; empty: it is not traced

    @property
    def end(self) -> int:
        return self.base + len(self.tokens)

    @property
    def start(self) -> int:
        return self.answer_start or self.end


@dataclass(frozen=True, slots=True)
class Ack:
    """The client holds `committed` tokens."""

    committed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens that the target has chosen: accepted draft nodes and the bonus token."""

    ask: int  # id of the question that it answers
    base: int
    prefix_hash: int  # 0 if the verdict before it, which it continues, has given one
    tokens: Sequence[int]
    finish: Finish = Finish.UNFINISHED  # whether and why the answer ends with them
    accepted: int = 0  # how many of `tokens` were drafted
    drafted: int = 0  # how many nodes the forward verified
    stale: int = 0  # how many came too late since the last verdict
    step_ms: float = 0.0  # how long the forward took, selection included
    server_drafted: int = 0  # how many of `drafted` only the server guessed
    server_accepted: int = 0  # and of `accepted`
    least_chance: float = 0.0  # that a node must have to be worth verifying now; 0: any
    chances: Sequence[TokenChances] = ()  # of each of `tokens`, where the question wants them
    shared: bool = False  # other answers were in the same forward

    @property
    def forwards(self) -> int:
        """How many chose its tokens: each adds one to those that were drafted."""
        return max(1, len(self.tokens) - self.accepted)


@dataclass(frozen=True, slots=True)
class Memory:
    """Rows of one plane, coded."""

    start: int  # position of the first row
    count: int
    codec: Codec
    payload: bytes
    plane: Plane
    prefix_hash: int  # of all tokens up to the last row's


@dataclass(frozen=True, slots=True)
class ThinMemory:
    """Some of a conversation's rows."""

    states: int  # of the conversation's first tokens, on the plane of reused states
    every: int  # of memory rows there is the newest one whenever so many tokens have come

    def owed(self, plane: Plane, length: int) -> tuple[int, int]:
        """The positions [start, stop) whose rows are sent after `length` tokens, if they were not before."""
        if plane is Plane.REUSED_STATE:
            return 0, min(self.states, length)
        stop = length - length % self.every
        return max(0, stop - 1), stop

    def owes_more(self, before: int, length: int) -> bool:
        return before < self.states or before // self.every < length // self.every


# With four states and a memory row now and then the deep drafter writes nine tenths of what it writes with all rows
# (docs/adr/0054).
THIN = ThinMemory(states=4, every=16)
# Other drafters make next to nothing of single rows. No text is so long that one would be due.
NO_ROWS = ThinMemory(states=0, every=(1 << 32) - 1)
