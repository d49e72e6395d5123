"""What an answer cost: counted while it comes, shown as one line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from moa_shared.answer import Finish


@dataclass(slots=True)
class Figures:
    """Counts of one answer.

    Args:
        tokens: committed.
        verdicts: frames that brought them: one a forward of the target that chose tokens.
        accepted: of the tokens, those that the drafter had guessed.
        drafted: nodes that the target verified.
        stale: nodes that came too late.
        seconds, first_token_seconds: since the question was sent.
        step_ms: of each forward, at the server.
        finish: why the answer ended.
    """

    tokens: int = 0
    verdicts: int = 0
    accepted: int = 0
    drafted: int = 0
    stale: int = 0
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    step_ms: list[float] = field(default_factory=list)
    finish: Finish = Finish.UNFINISHED

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a forward, after the first one, which never has a draft."""
        return (self.tokens - 1) / (self.verdicts - 1) if self.verdicts > 1 else float(self.tokens)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """All of it for a person."""
        each = max(1, self.tokens)
        return (
            f"{self.tokens} tokens in {self.seconds:.2f} s, {self.tokens_per_second:.1f} tokens/s, "
            f"first after {self.first_token_seconds * 1000:.0f} ms, "
            f"{self.acceptance_length:.2f} tokens a verification ({self.verdicts} round trips), "
            f"{self.up_bytes / each:.0f} bytes up and {self.down_bytes / each:.0f} down a token"
        )
