"""Whose turn it is to step: prompts are read slice by slice, and answers are not held up by more than one slice.

Pure. State: the sessions that wait, those with a prompt to read apart. A slice takes about as long as ten steps, so
counting turns alike would give an answer next to fifteen long prompts one step in fifteen slices. Invariant: between
two slices every answer that waits gets one step, so an answer waits for one slice and one step of each other answer;
all prompts together get one slice a round, so they do not starve either.
"""

from __future__ import annotations

from collections import deque

from moa_server.engine.live_session import LiveSession


class Turns:
    """Sessions whose turn may have come, each once."""

    def __init__(self) -> None:
        self._answers: deque[LiveSession] = deque()
        self._prompts: deque[LiveSession] = deque()
        self._before_slice: int | None = None  # answers that still step before the next slice; None: all that wait

    def add(self, live: LiveSession) -> None:
        """Queues the session after those of its kind."""
        (self._prompts if live.session.reads else self._answers).append(live)

    def next(self) -> LiveSession | None:
        """Takes the session whose turn it is."""
        if self._before_slice is None:
            self._before_slice = len(self._answers)
        if self._answers and (self._before_slice or not self._prompts):
            self._before_slice = max(0, self._before_slice - 1)
            return self._answers.popleft()
        self._before_slice = None
        return self._prompts.popleft() if self._prompts else None

    def clear(self) -> None:
        """Drops all sessions that wait."""
        self._answers.clear()
        self._prompts.clear()
