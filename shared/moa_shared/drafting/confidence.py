"""How sure a drafter may be that what it writes alone is what the target would write. Pure.

A drafter's own chance of its token is corrected by how often such tokens were right on answers that it has not seen,
as long as all before them since the cut were right. So the product over a run is the chance that all of it is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from moa_shared.drafting.reliability import ReliabilityCurve
from moa_shared.text.json_text import parse_json

# The first depth of each group of depths; a depth is the number of tokens since the newest committed one. What was
# verified says less and less about what comes, and a drafter does not know by how much.
GROUPS = (1, 2, 4, 8)


class Confidence:
    """The chances of one drafter's standalone tokens.

    Args:
        curves: one for each of GROUPS.

    Raises:
        ValueError: another number of curves.
    """

    def __init__(self, curves: Sequence[ReliabilityCurve]) -> None:
        if len(curves) != len(GROUPS):
            raise ValueError(f"{len(curves)} curves, expected {len(GROUPS)}")
        self._curves = tuple(curves)

    def chance(self, log_chance: float, depth: int) -> float:
        """The chance that a token is right if all before it are.

        Args:
            log_chance: the drafter's own.
            depth: 1 for the first token after the newest committed one.
        """
        return self._curves[group_of(depth)].corrected(math.exp(min(0.0, log_chance)))

    def to_json(self) -> str:
        """The curves; `from_json` reads them."""
        return json.dumps({"curves": [[round(share, 4) for share in curve.shares] for curve in self._curves]})

    @classmethod
    def from_json(cls, text: str) -> Confidence:
        """What `to_json` wrote.

        Raises:
            ValueError: something else.
        """
        try:
            content: Any = parse_json(text)
            return cls([ReliabilityCurve([float(share) for share in shares]) for shares in content["curves"]])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no curves ({error})") from None


def group_of(depth: int) -> int:
    """Which of GROUPS a depth belongs to."""
    return sum(depth >= first for first in GROUPS[1:])
