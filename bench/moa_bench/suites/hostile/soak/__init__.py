"""`moa-bench soak`: does a server keep anything of sessions that are over?"""

from dataclasses import dataclass

from moa_bench.report.report import PARTS
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class SoakEffort:
    """How many sessions, and after how many of them the memory is read."""

    sessions: int = 500
    batch: int = 50


SUITE = Suite(
    "soak",
    "Whether the server's memory stays as it was after 50 sessions while 500 are opened, used and left.",
    "moa_bench.suites.hostile.soak",
    PARTS,
    SoakEffort(),
    SoakEffort(20, 10),
    ("model",),
    lambda effort: 30.0 + 0.4 * effort.sessions,
)
