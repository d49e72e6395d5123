"""The ways in which all users of a server get their answers: who drafts, and how well. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Drafts = Literal["plain", "oracle", "shipped"]
KINDS: tuple[Drafts, ...] = get_args(Drafts)


@dataclass(frozen=True, slots=True)
class Way:
    """How all users get their answers.

    Args:
        drafts: plain: none; oracle: each device's, right at the rate `acceptance`; shipped: each device runs the
            drafter of the package.
    """

    drafts: Drafts
    acceptance: float | None = None

    @property
    def name(self) -> str:
        """For tables."""
        if self.drafts == "oracle":
            return f"devices' drafts, acceptance {self.acceptance:g}"
        return "plain" if self.drafts == "plain" else "devices' drafts, shipped drafter"


def make_ways(kinds: Sequence[Drafts], acceptances: Sequence[float]) -> tuple[Way, ...]:
    """Plain serving, which all others are compared with, then the chosen ways; an oracle's at each acceptance."""
    ways = [Way("plain")]
    for kind in KINDS:
        if kind == "oracle" and kind in kinds:
            ways += [Way(kind, acceptance) for acceptance in acceptances]
        elif kind != "plain" and kind in kinds:
            ways.append(Way(kind))
    return tuple(ways)
