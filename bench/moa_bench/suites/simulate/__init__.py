"""`moa-bench simulate`: what each schedule is worth in the event simulation."""

from dataclasses import dataclass

from moa_bench.report.report import PARTS
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class SimulateEffort:
    """How many tokens an answer has, how many answers there are of each kind, and over which links."""

    tokens: int = 600
    seeds: int = 5
    links: tuple[str, ...] = ("RTT 0", "5G", "4G", "RTT 150 ms", "RTT 300 ms")


SUITE = Suite(
    "simulate",
    "Streamed drafts, rounds and waiting over all links, in the event simulation; no model, no network.",
    "moa_bench.suites.simulate",
    PARTS,
    SimulateEffort(),
    SimulateEffort(60, 1),
    (),
    lambda effort: 0.04 * effort.tokens * effort.seeds,
    is_computed=True,
)
