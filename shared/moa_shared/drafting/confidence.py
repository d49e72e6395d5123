"""How sure a device may be that its standalone text is what the target would write. Pure.

The stated chance of a token is corrected by how often such tokens were right on answers that the drafter has not seen,
as long as all before them since the cut were right. So the product over a run is the chance that all of it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from moa_shared.drafting.reliability import ReliabilityCurve
from moa_shared.drafting.written import TokenOrigin, WrittenToken


class TokenConfidence(Protocol):
    """What stated chances are worth."""

    def chance(self, written: WrittenToken) -> float:
        """The chance that a token is right if all before it are."""
        ...


class Confidence:
    """What the chances of one drafter's standalone tokens are worth.

    Args:
        curves: one for each origin of a token.

    Raises:
        ValueError: an origin has none.
    """

    def __init__(self, curves: Mapping[TokenOrigin, ReliabilityCurve]) -> None:
        if missing := set(TokenOrigin) - set(curves):
            raise ValueError(f"no curve for {', '.join(sorted(missing))}")
        self.curves = dict(curves)

    def chance(self, written: WrittenToken) -> float:
        """The chance that a token is right if all before it are."""
        return self.curves[written.origin].corrected(_stated(written))


def chance_of(written: WrittenToken, confidence: TokenConfidence | None) -> float:
    """The chance that a token is right if all before it are.

    Args:
        confidence: None: it was never measured, and the stated chance is taken for it.
    """
    return _stated(written) if confidence is None else confidence.chance(written)


def _stated(written: WrittenToken) -> float:
    return math.exp(min(0.0, written.log_chance))
