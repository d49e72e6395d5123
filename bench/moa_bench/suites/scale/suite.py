"""`moa-bench scale`: users a GPU, cost and bandwidth on hardware that is not here; virtual time, no model."""

from __future__ import annotations

from dataclasses import dataclass

from moa_bench.report.report import SCALE
from moa_bench.suite import Suite
from moa_bench.suites.scale.published import OURS


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    """How much is simulated.

    Args:
        worlds: how many of the cases.
        acceptances: of drafts, besides the paper's.
        numbers: of users, besides those who fit.
        varied: cases whose assumptions are varied.
        most_users: of measured cells that are simulated for the check.
    """

    worlds: int = 5
    acceptances: tuple[float, ...] = (0.35, OURS.value, 0.9)
    numbers: tuple[int, ...] = (1, 16, 64, 128, 384, 800)
    varied: tuple[int, ...] = (0, 4)
    most_users: int = 32


def estimate_s(effort: ScaleEffort) -> float:
    """About how long it takes."""
    runs = effort.worlds * (1 + 4 * (1 + len(effort.acceptances))) * (1 + len(effort.numbers))
    return 0.2 * runs + 45 * len(effort.varied) + 0.4 * effort.most_users + 3


SUITE = Suite(
    "scale",
    "Users a GPU, cost and bandwidth for Llama-3-8B and 70B, in virtual time; each assumption has its source.",
    "moa_bench.suites.scale",
    SCALE,
    ScaleEffort(),
    ScaleEffort(1, (), (1, 64, 384), (), 4),
    (),
    estimate_s,
    pictures=("-aim", "-sensitivity"),
    is_computed=True,
)
