"""A token of standalone text: the drafter's own, or what the conversation has after the same tokens. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

Guess = tuple[int, float]  # a token and its log-chance


class TokenOrigin(StrEnum):
    """Who says so. What a chance is worth depends on it."""

    DRAFTER = "drafter"
    BOTH = "both"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token with its log-chance, as it is stated."""

    token: int
    log_chance: float
    origin: TokenOrigin


def likelier(own: Guess, copied: Guess | None) -> WrittenToken:
    """The likelier one of a drafter's token and a copied one.

    A token that both name is as likely as that one of them is right, if they err independently.
    """
    if copied is None or (copied[0] != own[0] and copied[1] <= own[1]):
        return WrittenToken(*own, TokenOrigin.DRAFTER)
    if copied[0] != own[0]:
        return WrittenToken(*copied, TokenOrigin.COPY)
    wrong = (1 - math.exp(min(0.0, own[1]))) * (1 - math.exp(copied[1]))
    return WrittenToken(own[0], math.log1p(-wrong), TokenOrigin.BOTH)
