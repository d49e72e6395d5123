"""Messages of one conversation as both ends hold them. Pure; `protocol.protobuf_messages` makes protobuf of them.

Positions are absolute: token t of the conversation, from 0. `base` is the position of a message's first token, and
`prefix_hash` the hash of all tokens before it, but for an Ask its low half: a repeated or late one changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import TokenChances


class Plane(IntEnum):
    """Which rows a Memory message holds; the numbers are those of the wire (moa.v1.Plane)."""

    MEMORY = 0  # cross-attention keys and values, un-rotated
    REUSED_STATE = 1  # the state that enters the first reused layer


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
