"""One answer as its client saw it: when its text came, from which replica, and which waits an incident had a part in.

Pure. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol


class Window(Protocol):
    """When something was wrong."""

    @property
    def down_s(self) -> float: ...

    @property
    def up_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """A stream that a replica has opened.

    Args:
        at_s: when it was open; `took_s`: from Open to Opened.
        address: the replica's direct address.
        text: tokens that the conversation had; `cached`: of these, those that the replica need not read.
    """

    at_s: float
    took_s: float
    address: str
    text: int
    cached: int

    @property
    def has_kv(self) -> bool:
        """Whether the replica still had most of the text's keys and values."""
        return 2 * self.cached >= self.text


@dataclass(slots=True)
class Asked:
    """One answer as its client saw it.

    Args:
        client: who asked.
        text: which of the texts is due.
        asked_s: when; `ended_s`: when it was whole, or lost; None: not yet.
        arrivals_s: when committed text came; `counts`: how many tokens each time.
        tokens: of the answer.
        failure: why it was lost; empty: it was not.
        openings: of its streams; all but the first one resume it.
    """

    client: int
    text: int
    asked_s: float
    ended_s: float | None = None
    arrivals_s: list[float] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    failure: str = ""
    counts: list[int] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)

    @property
    def waits(self) -> list[tuple[float, float]]:
        """From when to when the client waited for text."""
        return list(pairwise([self.asked_s, *self.arrivals_s, *([] if self.ended_s is None else [self.ended_s])]))

    def stall_s(self, window: Window) -> float:
        """The longest wait for text that an incident had a part in; 0: none."""
        return max(
            (after - before for before, after in self.waits if before < window.up_s and after > window.down_s),
            default=0.0,
        )

    def meets(self, window: Window) -> bool:
        """Whether the answer was under way during an incident."""
        return self.asked_s < window.up_s and (self.ended_s is None or self.ended_s > window.down_s)

    def first_text_s(self, opening: Opening) -> float | None:
        """From an Open until text came; None: none came on that stream."""
        after = [each.at_s for each in self.openings if each.at_s > opening.at_s]
        came = next((at_s for at_s in self.arrivals_s if at_s >= opening.at_s), None)
        if came is None or (after and came >= after[0]):
            return None
        return came - opening.at_s + opening.took_s

    def arrivals_by_address(self) -> list[tuple[float, str, int]]:
        """When text came, from which replica, and how many tokens."""
        found = []
        for at_s, count in zip(self.arrivals_s, self.counts, strict=True):
            before = [each.address for each in self.openings if each.at_s <= at_s]
            if before:
                found.append((at_s, before[-1], count))
        return found
