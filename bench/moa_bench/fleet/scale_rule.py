"""How many replicas a load needs: a simple rule for the bench, where no engine decides. Pure.

State: for how many looks fewer replicas would have done. Invariant: at most one replica more or less at a time.
"""

from __future__ import annotations

import math

EACH = 4.0  # answers under way that a replica is for
PATIENCE = 5  # looks in a row at which fewer would do, before one goes


def answers_under_way(load: float, step_ms: float, row_ms: float) -> float:
    """From what a server tells of itself: its load is the share that other answers' rows have of a step."""
    if not row_ms:
        return 0.0
    return min(load, 0.99) / (1 - min(load, 0.99)) * step_ms / row_ms


class ScaleRule:
    """Decides how many replicas there should be.

    Args:
        least, most: replicas.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._looks = 0

    def decide(self, answers: float, replicas: int) -> int:
        """How many there should be next.

        Args:
            answers: under way at all of them.
            replicas: that there are.
        """
        wanted = min(self._most, max(self._least, math.ceil(answers / EACH)))
        self._looks = self._looks + 1 if wanted < replicas else 0
        if wanted > replicas:
            return replicas + 1
        if self._looks >= PATIENCE:
            self._looks = 0
            return replicas - 1
        return replicas
