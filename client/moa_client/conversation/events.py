"""What happens while an answer is written, as the surfaces (terminal, pipe, JSON) are told of it. Pure.

What a reader sees is committed text followed by provisional text. `Committed` and `Provisional` append, `Corrected`
takes provisional text back; committed text never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from moa_shared.errors import MoaError
from moa_shared.protocol.finish_rule import Finish


class LinkState(Enum):
    """How the link to the server is."""

    GOOD = "good"
    SLOW = "slow"  # answers come, but the way there and back takes several steps of the server
    OFFLINE = "offline"  # the timer has run out, the stream broke, or the user wants it so
    BACK = "back"  # reconnected; what was written alone is being verified


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that the target has chosen (or that `reconcile=keep` keeps), behind all committed before.

    Args:
        confirmed: how many of them, from the first one on, were shown as provisional in the same place.
    """

    tokens: tuple[int, ...]
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class Provisional:
    """Tokens that the device has written without the server, behind everything shown so far."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Corrected:
    """All provisional text that is still shown is withdrawn: the target goes on otherwise.

    Args:
        dropped: how many provisional tokens that is.
    """

    dropped: int


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The state of the link has changed.

    Args:
        reason: for a person, where there is one.
    """

    state: LinkState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over.

    Args:
        provisional: it ended without the server and will be verified at the next contact.
    """

    finish: Finish
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """An earlier answer, which had ended without the server, has been verified (or kept).

    Args:
        tokens: what the server has decided of it, in place of what was provisional then.
        changed: whether that differs from what was shown.
    """

    tokens: tuple[int, ...]
    changed: bool
    finish: Finish


@dataclass(frozen=True, slots=True)
class Refused:
    """An earlier answer, which had ended without the server, will not be verified: the server refuses it.

    Args:
        error: why; it is this answer's alone, and later ones have nothing to do with it.
    """

    error: MoaError


@dataclass(frozen=True, slots=True)
class ExecutionChanged:
    """The server that continues the conversation computes otherwise than the one on which it began.

    What is committed stays; what follows may read otherwise than it would have read there.

    Args:
        level: of execution, such as int8.
        exact: whether the text does not depend on what is verified together.
    """

    level: str
    exact: bool


Event = Committed | Provisional | Corrected | LinkChanged | ExecutionChanged | Ended | Settled | Refused
