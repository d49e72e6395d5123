"""Which refused calls are worth a line in the log: a few a minute of each kind, and how many were left out.

Pure: clock readings are arguments, in seconds. State: the counts of this minute, for each error's code and owner.
Invariant: at most MOST_LINES a minute for each, MOST_KINDS of them; all others share one.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60.0  # seconds
MOST_LINES = 10
MOST_KINDS = 256  # a flood from many addresses writes no more lines than a flood from so many
OTHERS = "(others)"


@dataclass(slots=True)
class _Kind:
    since: float
    lines: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many refusals of a kind had no line in the minute that has ended."""

    code: str
    owner: str
    count: int


class RefusalLog:
    """Decides which refusals are logged."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def is_worth_a_line(self, code: str, owner: str, now: float) -> bool:
        """Counts a refusal; whether to log it.

        Args:
            code: of the error; `owner`: who was refused.
        """
        name = (code, owner)
        if name not in self._kinds and len(self._kinds) >= MOST_KINDS:
            name = (code, OTHERS)
        kind = self._kinds.setdefault(name, _Kind(now))
        if kind.lines < MOST_LINES:
            kind.lines += 1
            return True
        kind.left_out += 1
        return False

    def take_left_out(self, now: float) -> list[LeftOut]:
        """What was left out of minutes that have ended, of which nothing is remembered then."""
        ended = [name for name, kind in self._kinds.items() if now >= kind.since + MINUTE]
        kinds = [(name, self._kinds.pop(name)) for name in ended]
        return [LeftOut(*name, kind.left_out) for name, kind in kinds if kind.left_out]
