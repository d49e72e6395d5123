"""`moa-bench invariance`: whether a row's bits depend on what is computed with it."""

from dataclasses import dataclass

from moa_bench.options import option
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class InvarianceEffort:
    """How much to compare."""

    positions: int = option(100_000, "Positions of the texts to read.", least=1)
    threads: tuple[int, ...] = option(
        (2, 3), "Compared with one (repeat).", least=2, most=64
    )  # three on two cores: threads then often wake late


SUITE = Suite(
    "invariance",
    "Whether a row's bits depend on what is computed with it: chains, trees, chunks, batches, threads, variants.",
    "moa_bench.suites.engine.invariance",
    InvarianceEffort(),
    InvarianceEffort(300),
    ("model", "level", "questions"),
    lambda effort: 20.0 + 0.045 * effort.positions,
)
