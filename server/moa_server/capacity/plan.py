"""How many conversations of which length fit into a budget. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moa_shared.errors import ConfigError
from rich.filesize import decimal

from moa_server.verifier.target import KV_SHARE

LENGTHS = (1024, 4096)  # of a chat of several turns, and of one over a document; then they double


@dataclass(frozen=True, slots=True)
class ConversationRoom:
    """The conversations of one length.

    Args:
        tokens: of each, question and answer together.
        nbytes: that each takes.
        sessions: that fit.
    """

    tokens: int
    nbytes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Needed:
    """The memory that is taken before anybody talks to the server, in bytes.

    Args:
        idle: of `weights`: those of experts that a step of one row does not read.
        is_mapped: the system may drop weights, and reads those again that are chosen.
    """

    weights: int
    drafters: int
    process: int
    idle: int = 0
    is_mapped: bool = False

    @property
    def total(self) -> int:
        return self.weights + self.drafters + self.process

    @property
    def least(self) -> int:
        """What is needed where experts are read from the disk when a token goes to them."""
        return self.total - self.idle if self.is_mapped else self.total


def session_lengths(context_tokens: int) -> list[int]:
    """The lengths to tell, in tokens: usual ones, and the whole context."""
    lengths = [*LENGTHS]
    while lengths[-1] < context_tokens:
        lengths.append(2 * lengths[-1])
    return sorted({min(length, context_tokens) for length in lengths})


def kv_budget(memory: int, needed: Needed) -> int:
    """The bytes that all keys and values get on a machine with so much memory, as a server there would decide.

    Raises:
        ConfigError: there is not enough for the model.
    """
    left = memory - (needed.total if needed.total < memory else needed.least)
    if left <= 0:
        raise ConfigError(
            f"{decimal(memory)} of memory do not hold the model: it takes {decimal(needed.least)} before anybody asks.",
            hint="Plan with more --memory, or a smaller model.",
        )
    return int(KV_SHARE * left)


def plan_rooms(budget: int, context_tokens: int, session_nbytes: Callable[[int], int]) -> list[ConversationRoom]:
    """What fits into a budget of keys and values.

    Args:
        session_nbytes: of a conversation of so many tokens.

    Raises:
        ConfigError: not even one short conversation does.
    """
    rooms = []
    for tokens in session_lengths(context_tokens):
        nbytes = session_nbytes(tokens)
        rooms.append(ConversationRoom(tokens, nbytes, budget // nbytes))
    first = rooms[0]
    if not first.sessions:
        raise ConfigError(
            f"{decimal(budget)} of keys and values hold no conversation: "
            f"one of {first.tokens} tokens takes {decimal(first.nbytes)}.",
            hint="Plan with more --kv-bytes or --memory, or a smaller model.",
        )
    return rooms
