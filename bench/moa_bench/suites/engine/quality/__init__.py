"""`moa-bench quality`: how far the levels are from float32, over the float32 target's own greedy answers."""

from dataclasses import dataclass

from moa_bench.options import option
from moa_bench.report.report import ENGINE
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class QualityEffort:
    """How much to compare."""

    positions: int = option(2000, "Positions of answers to compare.", least=1)


SUITE = Suite(
    "quality",
    "How far int8 and bf16 are from float32: divergence, perplexity and first choices over its own answers.",
    "moa_bench.suites.engine.quality",
    ENGINE,
    QualityEffort(),
    QualityEffort(40),
    ("model", "questions"),
    lambda effort: 30.0 + 0.4 * effort.positions,
)
