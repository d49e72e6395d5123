"""A session's turn to step: whether it waits for a forward, is in one, or is held back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Turn:
    """Where a session is between two forwards.

    Args:
        queued: waits for its turn, since `queued_at` (time.monotonic).
        stepping: a forward for it, or a job that moves its pages, is queued or runs.
        held: its caller's limit of tokens is reached, and the answer waits until it is let in again.
        steps: forwards that it was in.
    """

    queued: bool = False
    queued_at: float = 0.0
    stepping: bool = False
    held: bool = False
    steps: int = 0

    def queue(self, now: float) -> None:
        """Begins to wait."""
        self.queued, self.queued_at = True, now

    def take(self) -> None:
        """Is considered for the next forward."""
        self.queued = False

    def occupy(self) -> None:
        """A forward, or a job that moves its pages, is submitted."""
        self.stepping = True

    def vacate(self) -> None:
        """That job has ended."""
        self.stepping = False

    def end_step(self) -> None:
        """A forward has ended."""
        self.stepping = False
        self.steps += 1

    def hold(self) -> None:
        """Does not step until `let_in`."""
        self.held = True

    def let_in(self) -> None:
        """May step."""
        self.held = False
