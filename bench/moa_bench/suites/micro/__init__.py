"""`moa-bench micro`: what verification and drafting cost, on one thread."""

from dataclasses import dataclass

from moa_bench.report.report import PARTS
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class MicroEffort:
    """How much to measure."""

    prefix_tokens: int = 256  # before forwards and drafts: a question and half of its answer
    repeats: int = 20  # of each forward: so many pairs give ratios to about 1 % on a quiet machine


SUITE = Suite(
    "micro",
    "What the parts cost: verification and drafting, on one thread.",
    "moa_bench.suites.micro",
    PARTS,
    MicroEffort(),
    MicroEffort(64, 2),
    ("model", "level", "pin"),
    lambda effort: 10.0 + 1.5 * effort.repeats,
)
