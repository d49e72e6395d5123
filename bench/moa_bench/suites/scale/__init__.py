"""`moa-bench scale`: users a GPU, cost and bandwidth on hardware that is not here; virtual time, no model."""

from dataclasses import dataclass

from moa_bench.harness.shapes import ACCEPTANCES
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    """How much is simulated."""

    worlds: int = 5  # how many of the cases
    acceptances: tuple[float, ...] = ACCEPTANCES  # of drafts, besides the paper's
    numbers: tuple[int, ...] = (1, 16, 64, 128, 384, 800)  # of users, besides those who fit


def estimate_s(effort: ScaleEffort) -> float:
    return 3 + 0.2 * effort.worlds * (1 + 4 * (1 + len(effort.acceptances))) * (1 + len(effort.numbers))


SUITE = Suite(
    "scale",
    "Users a GPU, cost and bandwidth for Llama-3-8B and 70B, in virtual time; each assumption has its source.",
    "moa_bench.suites.scale",
    ScaleEffort(),
    ScaleEffort(1, (), (1, 64, 384)),
    (),
    estimate_s,
    is_computed=True,
)
