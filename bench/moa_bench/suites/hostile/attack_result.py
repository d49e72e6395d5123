"""What the honest client and the server's memory showed of one attack. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOST_GROWTH = 0.2  # of the p95 gap
MOST_MEMORY_MB = 32.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between the tokens of some answers, without the wait for the first token.

    Args:
        p95_ms: of all gaps.
        worst_ms: the longest.
        answers: how many answers.
        exact: whether each is the text that the server writes without attackers.
        failure: why there was none; the figures are 0 then.
    """

    p95_ms: float
    worst_ms: float
    answers: int
    exact: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What the honest client and the server's memory showed of one attack.

    Args:
        before, during, after: gaps between the honest client's tokens; `before` is next to an honest neighbour where
            the attack has answers written.
        memory_before_mb, memory_peak_mb, memory_after_mb: of the server.
    """

    attack: str
    beside_neighbour: bool
    before: Gaps
    during: Gaps
    after: Gaps
    memory_before_mb: float
    memory_peak_mb: float
    memory_after_mb: float

    @property
    def growth(self) -> float:
        """Growth of the p95 gap during the attack, as a share."""
        return self.during.p95_ms / self.before.p95_ms - 1.0 if self.before.p95_ms else 0.0

    @property
    def memory_growth_mb(self) -> float:
        return self.memory_peak_mb - self.memory_before_mb

    @property
    def is_harmless(self) -> bool:
        """Within the limits, and every answer whole."""
        exact = self.before.exact and self.during.exact and self.after.exact
        return exact and self.growth < MOST_GROWTH and self.memory_growth_mb < MOST_MEMORY_MB
