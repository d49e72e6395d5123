"""What the honest client and the server's memory showed of one attack. Pure."""

from dataclasses import dataclass

MOST_GROWTH = 0.2  # of the p95 gap
MOST_MEMORY_MB = 32.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between the tokens of some answers, without the wait for the first token."""

    p95_ms: float
    worst_ms: float
    answers: int
    exact: bool  # whether each is the text that the server writes without attackers
    failure: str = ""  # why there was no answer; the figures are 0 then


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What the honest client and the server's memory showed of one attack."""

    attack: str
    beside_neighbour: bool  # in `before`, because the attack has answers written
    before: Gaps  # of the honest client, as the next two
    during: Gaps
    after: Gaps
    memory_before_mb: float  # of the server, as the next two
    memory_peak_mb: float
    memory_after_mb: float

    @property
    def growth(self) -> float:
        return self.during.p95_ms / self.before.p95_ms - 1.0 if self.before.p95_ms else 0.0

    @property
    def memory_growth_mb(self) -> float:
        return self.memory_peak_mb - self.memory_before_mb

    @property
    def is_harmless(self) -> bool:
        """Within the limits, and every answer whole."""
        return self.is_exact and self.growth < MOST_GROWTH and self.memory_growth_mb < MOST_MEMORY_MB

    @property
    def is_exact(self) -> bool:
        return self.before.exact and self.during.exact and self.after.exact
