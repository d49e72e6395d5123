"""What a surface asks of one answer, in plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moa_shared.protocol.finish_rule import AnswerSettings


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How one answer is chosen and where it ends.

    Args:
        temperature: 0 is greedy.
        top_k: sample from the k likeliest tokens; 0: from all.
        top_p: sample from the likeliest tokens up to this probability.
        seed: the same seed gives the same text.
        max_tokens: of the answer; 0: as the context allows.
        stop: strings before which the answer ends.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 0
    stop: tuple[str, ...] = ()

    def settings(self) -> AnswerSettings:
        """The same for the engine.

        Raises:
            ConfigError: a value outside its range.
        """
        from moa_shared.protocol.finish_rule import AnswerSettings
        from moa_shared.sampling.settings import Sampling

        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        return AnswerSettings(sampling, self.max_tokens, self.stop)
