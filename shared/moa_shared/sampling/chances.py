"""How likely the target finds the tokens that it chooses, and which others it finds likely. Light; pure.

Of the distribution before the settings, as OpenAI's API has it, or of the one that tokens were drawn from.
`sampling.log_probabilities` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.errors import ConfigError

MOST_LIKELIEST = 20  # OpenAI's limit


@dataclass(frozen=True, slots=True)
class WantedChances:
    """What an asker wants to know of the tokens of its answer.

    Args:
        likeliest: how many of the likeliest tokens at each place, 0 to 20.
        processed: after biases, penalties, temperature, top-k, top-p, min-p and the constraint; else before.

    Raises:
        ConfigError: more than 20.
    """

    likeliest: int = 0
    processed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.likeliest <= MOST_LIKELIEST:
            raise ConfigError(f"{self.likeliest} likeliest tokens were asked for, expected 0 to {MOST_LIKELIEST}.")


@dataclass(frozen=True, slots=True)
class TokenChances:
    """Natural logarithms of probabilities at one place of a text.

    Args:
        chosen: of the token that stands there.
        tokens, chances: the likeliest ones, likeliest first, and theirs.
    """

    chosen: float
    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
