"""The ways in which all users of a server get their answers: who drafts, and how well. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Drafts = Literal["plain", "server", "oracle", "shipped", "auto", "everything"]
KINDS: tuple[Drafts, ...] = get_args(Drafts)
AUTO_AT = 0.8  # acceptance of devices next to a server that drafts: that of the aim


@dataclass(frozen=True, slots=True)
class Strategy:
    """How all users get their answers.

    Args:
        drafts: plain: none; server: the server's own; oracle: each device's, right at the rate `acceptance`; shipped:
            each device runs the drafter of the package; auto: the server's while it has time, otherwise an oracle's;
            everything: the server's while it has time, otherwise the drafter of the package.
    """

    drafts: Drafts
    acceptance: float | None = None  # of an oracle

    @property
    def name(self) -> str:
        oracle = f"devices' drafts, acceptance {self.acceptance:g}" if self.acceptance is not None else ""
        return {
            "plain": "plain",
            "server": "server's drafts",
            "oracle": oracle,
            "shipped": "devices' drafts, shipped drafter",
            "auto": f"server's or {oracle}",
            "everything": "server's or devices' drafts, shipped drafter",
        }[self.drafts]

    @property
    def server_drafts(self) -> bool:
        return self.drafts in ("server", "auto", "everything")


def make_strategies(kinds: Sequence[Drafts], acceptances: Sequence[float]) -> tuple[Strategy, ...]:
    """Plain serving, which all others are compared with, then the chosen ways.

    An oracle is asked at each acceptance, next to a server that drafts only at AUTO_AT, or the last one.
    """
    ways = [Strategy("plain")]
    for kind in KINDS:
        if kind == "plain" or kind not in kinds:
            continue
        if kind == "oracle":
            ways += [Strategy(kind, acceptance) for acceptance in acceptances]
        elif kind == "auto":
            ways.append(Strategy(kind, AUTO_AT if AUTO_AT in acceptances else acceptances[-1]))
        else:
            ways.append(Strategy(kind))
    return tuple(ways)
