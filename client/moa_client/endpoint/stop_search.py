"""Which of its stop strings has ended an answer: its text ends before that string. Pure.

State: the newest tokens of the answer, as many as a stop string can have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from moa_shared.protocol.finish_rule import STOP_WINDOW_TOKENS


class StopSearch:
    """Looks for the stop string at the end of one answer.

    Args:
        stops: that may end it; at least one.
        decode: text of some tokens.
    """

    def __init__(self, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stops = tuple(stops)
        self._decode = decode
        self._newest: deque[int] = deque(maxlen=STOP_WINDOW_TOKENS)

    def push(self, tokens: Sequence[int]) -> None:
        """Adds tokens of the answer."""
        self._newest.extend(tokens)

    def found(self, more: Sequence[int] = ()) -> str | None:
        """The stop string that the text has first; None: it has none of them.

        Args:
            more: tokens after those that were added.
        """
        if len(self._stops) == 1:
            return self._stops[0]
        text = self._decode([*self._newest, *more][-STOP_WINDOW_TOKENS:])
        places = {at: stop for stop in reversed(self._stops) if (at := text.find(stop)) >= 0}
        return places[min(places)] if places else None
