"""The memory rows that are enough for a device that only writes without its server, while the link holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.protocol.messages import Plane


@dataclass(frozen=True, slots=True)
class ThinMemory:
    """Some of a conversation's rows.

    Args:
        states: of the conversation's first tokens, on the plane of reused states.
        every: of memory rows there is the newest one whenever so many tokens have come.
    """

    states: int
    every: int

    def owed(self, plane: Plane, length: int) -> tuple[int, int]:
        """The positions [start, stop) whose rows are sent after `length` tokens, if they were not before."""
        if plane is Plane.REUSED_STATE:
            return 0, min(self.states, length)
        stop = length - length % self.every
        return max(0, stop - 1), stop

    def owes_more(self, before: int, length: int) -> bool:
        """Whether more rows are owed after `length` tokens than after `before`."""
        return before < self.states or before // self.every < length // self.every


# Reused layers attend to the first states most, and are fed with predictions of all others: with four of them and a
# memory row now and then the deep drafter writes nine tenths of what it writes with all rows (docs/adr/0054).
THIN = ThinMemory(states=4, every=16)
# Other drafters make next to nothing of single rows, which are wider too (EAGLE's: 2.3 kB for an 8B model). No text is
# so long that one would be due.
NO_ROWS = ThinMemory(states=0, every=(1 << 32) - 1)
