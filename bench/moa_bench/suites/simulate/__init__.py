"""`moa-bench simulate`: the event simulation next to what `split` measured with oracles."""

from dataclasses import dataclass
from pathlib import Path

from moa_bench.options import option
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class SimulateEffort:
    """How much is simulated."""

    seeds: int = 8  # of the link's delays; an oracle's luck is the measured one's
    results: Path | None = option(
        None, "Folder of what was measured.", shown="the checkout's results", metavar="FOLDER"
    )


SUITE = Suite(
    "simulate",
    "The event simulation, checked against what `split --shape` measured; no model, no network.",
    "moa_bench.suites.simulate",
    SimulateEffort(),
    SimulateEffort(1),
    (),
    lambda effort: 4.0 * effort.seeds,
    is_computed=True,
)
