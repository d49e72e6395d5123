"""How a token is chosen: the settings that both ends share. Light, so that command lines import it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.errors import ConfigError

SEED_LIMIT = 1 << 64
# Logits of up to 10,000, divided by it, are still told apart by one in float32; divided by far less they are infinite,
# and no rule is left by which to choose.
LEAST_TEMPERATURE = 1e-3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from the target's distribution.

    Args:
        temperature: divides the logits, LEAST_TEMPERATURE to 100; 0 is greedy (no noise).
        top_k: keep only the k likeliest tokens (and those tied with the last of them); 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probabilities reach this sum; 1 keeps all.
        seed: 0 to 2**64 - 1; keys the noise. The same seed gives the same text.

    Raises:
        ConfigError: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature == 0.0 or LEAST_TEMPERATURE <= self.temperature <= 100.0):  # NaN fails too
            raise ConfigError(
                f"temperature is {self.temperature}, expected 0 (greedy) or {LEAST_TEMPERATURE:g} to 100."
            )
        if not 0 <= self.top_k < 1 << 31:
            raise ConfigError(f"top_k is {self.top_k}, expected 0 (off) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}, expected more than 0 and at most 1.")
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"seed is {self.seed}, expected 0 to 2**64 - 1.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0
