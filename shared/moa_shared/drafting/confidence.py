"""How sure a drafter may be that what it writes alone is what the target would write. Pure.

A drafter's own chance of its token is corrected by how often such tokens were right on answers that it has not seen,
as long as all before them since the cut were right. So the product over a run is the chance that all of it is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from moa_shared.drafting.reliability import ReliabilityCurve

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
        self.curves = tuple(curves)

    def chance(self, log_chance: float, depth: int) -> float:
        """The chance that a token is right if all before it are.

        Args:
            log_chance: the drafter's own.
            depth: 1 for the first token after the newest committed one.
        """
        return self.curves[group_of(depth)].corrected(math.exp(min(0.0, log_chance)))


def group_of(depth: int) -> int:
    """Which of GROUPS a depth belongs to."""
    return sum(depth >= first for first in GROUPS[1:])
