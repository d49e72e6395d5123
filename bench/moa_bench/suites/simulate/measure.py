"""Each answer that an oracle's drafts sped up, simulated with the same luck, step, rows and link."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

from moa_client.drafting.settings import DraftingSettings
from moa_server.drafting.forward_cost import RowShares

from moa_bench.harness.links import LINKS
from moa_bench.harness.oracle import DRAFT_MS, ROUNDS, Script
from moa_bench.report.report import checkout_root
from moa_bench.report.results import ResultOrigin, read_folder
from moa_bench.simulation.answer import simulate
from moa_bench.simulation.server import Costs
from moa_bench.simulation.user import SimulatedLink
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.simulate import SimulateEffort
from moa_bench.suites.split.figures import PLAIN, STREAMED, SYNCHRONOUS

WAYS = {STREAMED: DraftingSettings("device"), SYNCHRONOUS: ROUNDS}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A way over a link: tokens a second after the first, over plain streaming's."""

    result: str  # that measured it
    origin: str  # machine and commit
    link: str
    way: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Measured over simulated, less one."""
        return self.measured / self.simulated - 1


def measure(effort: SimulateEffort, run: SuiteRun) -> Result:
    """Compares the results of a folder; none, where no oracle was measured yet."""
    root = checkout_root()
    folder = effort.results or (None if root is None else root / "bench" / "results")
    results = {} if folder is None else read_folder(folder)
    measured = {name: each for name, each in results.items() if each.get("has_oracles")}
    return {"rows": [row for name, each in measured.items() for row in comparisons(name, each, effort)]}


def comparisons(name: str, result: Mapping[str, Any], effort: SimulateEffort) -> Iterator[Comparison]:
    """A row for each link that stays the same and each way in which chains were drafted."""
    links = {link.name: link for link in LINKS}
    for link in (name for name in result["links"] if name in links):
        rounds = [each for each in result["rounds"] if each["link"] == link]
        simulated_link = SimulatedLink(links[link].conditions)
        for method in dict.fromkeys(method for each in rounds for method in each["answers"]):
            drafter, _, way = method.rpartition(": ")
            if way not in WAYS or "trees" in drafter:
                continue
            acceptance = float(drafter.partition(", ")[2])
            pairs = [_pair(each, method, acceptance, simulated_link, result, effort) for each in rounds]
            measured, simulated = (round(median(side), 3) for side in zip(*pairs, strict=True))
            origin = ResultOrigin.of(result)
            yield Comparison(name, f"{origin.machine}, {origin.commit}", link, f"{drafter}: {way}", measured, simulated)


def _pair(
    each: Mapping[str, Any],
    method: str,
    acceptance: float,
    link: SimulatedLink,
    result: Mapping[str, Any],
    effort: SimulateEffort,
) -> tuple[float, float]:
    """How many times plain streaming's speed one answer had, measured and simulated."""
    [answer], plain = each["answers"][method], each["answers"][PLAIN]
    measured = _rate(answer) / fmean(_rate(one) for one in plain)
    step_ms = result["costs"]["step_ms"]
    rows = RowShares.of_times(step_ms, result["costs"]["times"])
    costs = Costs(plain_ms=step_ms, verify_ms=step_ms, rows=rows, draft_ms=DRAFT_MS)
    script = Script((), acceptance, 0, 1)
    of_answer = partial(
        simulate,
        lambda number: script.right_at(each["prompt_tokens"] + number),
        link,
        tokens=answer["tokens"],
        costs=costs,
    )
    drafting, chain = WAYS[method.rpartition(": ")[2]], result["effort"]["chain"]
    speeds = [
        of_answer(seed=seed, drafting=drafting, round_length=chain).tokens_per_s / of_answer(seed=seed).tokens_per_s
        for seed in range(effort.seeds)
    ]
    return measured, fmean(speeds)


def _rate(answer: Mapping[str, Any]) -> float:
    """Tokens a second after the first."""
    return (int(answer["tokens"]) - 1) / (float(answer["seconds"]) - float(answer["first_ms"]) / 1e3)
