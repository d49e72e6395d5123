"""How many users GPUs serve at a speed, by each way to draft; and the simulation next to what `split` measured.

Every number that goes in is in `assumptions.csv`, with its unit and where it comes from: published by a maker or a
paper, measured here, derived from such, or assumed: nobody's.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args

from moa_client.drafting.settings import DraftingSettings
from moa_server.drafting.forward_cost import RowShares
from moa_server.engine.planning.schedule import MOST_ROWS
from moa_shared.errors import InternalError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.links import LINKS
from moa_bench.harness.oracle import DRAFT_MS, ROUNDS, Script
from moa_bench.registry import ScaleEffort
from moa_bench.report import ResultOrigin, checkout_root, read_folder
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.scale.simulator import (
    Costs,
    ScriptedText,
    SimulatedLink,
    SimulatedServer,
    SimulatedUser,
    VirtualTime,
    by_chance,
    simulate,
)
from moa_bench.suites.scale.tables import Load, render
from moa_bench.suites.split.tables import PLAIN, STREAMED, SYNCHRONOUS

__all__ = ["measure", "render"]
OF_ALL = "all"
CASES = (
    ("Llama-3-8B", "A100 80 GB", 1, "phone"),
    ("Llama-3-8B", "H100 80 GB", 1, "phone"),
    ("Llama-3-8B", "H100 80 GB", 1, "laptop"),
    ("Llama-3-70B", "A100 80 GB", 4, "laptop"),
    ("Llama-3-70B", "H100 80 GB", 4, "phone"),
)
Way = Literal["plain", "streamed", "auto"]  # of serving: none drafts; devices do; the server too, while that pays
SLOWEST = 10.0  # tokens a second: no table asks for less
# Users; each stands for so many that their number is the crowd's: 24 for 200 are within 2 % of the 200, 8 are 12 % off.
SIMULATED = 24
LONGEST = 600  # tokens of an answer: more than anybody gets
SETTLE_ROUNDS, TIMED_ROUNDS = 8, 16  # forwards before rates are taken, and while they are
BYTES, FLOPS = 2, 2  # of a weight in bf16; of a weight for each row
WAYS = {STREAMED: DraftingSettings("device"), SYNCHRONOUS: ROUNDS}  # that `split` measures with oracles


def measure(effort: ScaleEffort, run: SuiteRun) -> Result:
    """Simulates all; each world is a cell."""
    worlds = all_worlds()[: effort.worlds]
    found = []
    with make_progress().task("Simulated", len(worlds) + 1) as task:
        for world in worlds:
            found.append(run.keep(f"scale {world.name}", partial(_world, world, effort)))
            task.advance(1)
        check = list(comparisons(effort.seeds))
    return {"target": "simulated", "assumptions": rows(worlds), "worlds": found, "check": check}


@dataclass(frozen=True, slots=True)
class World:
    """A case: what it is of, and all that it assumes, in the units of `assumptions.csv`."""

    target: str
    gpu: str
    gpus: int
    device: str
    of_target: Mapping[str, float]
    of_gpu: Mapping[str, float]
    of_device: Mapping[str, float]
    of_all: Mapping[str, float]

    @property
    def name(self) -> str:
        gpus = f"{self.gpus} x {self.gpu}" if self.gpus > 1 else self.gpu
        return f"{self.target}, {gpus}, {self.device}"


def all_worlds() -> list[World]:
    def values(of: str) -> dict[str, float]:
        return {each["what"]: float(each["value"]) for each in _table() if each["of"] == of}

    return [
        World(target, gpu, gpus, device, values(target), values(gpu), values(device), values(OF_ALL))
        for target, gpu, gpus, device in CASES
    ]


def rows(worlds: Sequence[World]) -> list[list[str]]:
    """Each assumption of these cases: of what, which, how much, what kind of figure, whence."""
    parts = {part for world in worlds for part in (world.gpu, world.target, world.device)} | {OF_ALL}
    return [
        [each["of"], each["what"], f"{each['value']} {each['unit']}", each["kind"], each["source"]]
        for each in _table()
        if each["of"] in parts
    ]


def _table() -> list[dict[str, str]]:
    with Path(__file__).with_name("assumptions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _world(world: World, effort: ScaleEffort) -> dict[str, Any]:
    ways = []
    for way in get_args(Way):
        most, loads = fit(world, way), []
        for users in sorted({*effort.numbers, max(1, most)}):
            loads.append(Load(users, serve(world, way, users)))
            if loads[-1].rate < SLOWEST:
                break
        ways.append({"way": way, "fit": most, "loads": [asdict(load) for load in loads]})
    return {"name": world.name, "gpus": world.gpus, "price": world.of_gpu["price"], "ways": ways}


def gpu_costs(world: World, weight: float = 1.0) -> Costs:
    """A forward reads its bytes and computes its rows, spread over the GPUs; on an H100 that takes the sum of both, not
    the longer (docs/measurements/scale.md). A draft step of a device reads the drafter and the head.

    Args:
        weight: users for each that is simulated, who step together. The price of a row in tokens is the same for the
            few as for the crowd: the rate of tokens is so many times lower, and a row takes as much longer.
    """
    target, of_all = world.of_target, world.of_all
    bytes_a_ms = world.of_gpu["bandwidth"] * of_all["bandwidth share"] * world.gpus / 1e3
    flops_a_ms = world.of_gpu["flops"] * of_all["flops share"] * world.gpus / 1e3
    launch_ms = of_all["launch ms"] + (world.gpus > 1) * 2 * target["layers"] * of_all["all reduce us"] / 1e3
    once_ms = launch_ms + target["weights"] * BYTES / bytes_a_ms
    answer_ms, row_ms = target["kv"] * of_all["context"] / bytes_a_ms, target["weights"] * FLOPS / flops_a_ms
    drafter = target["drafter"] + target["head"]
    step_ms, draft_row_ms = of_all["draft launch ms"] + drafter * BYTES / bytes_a_ms, drafter * FLOPS / flops_a_ms
    device_ms = 1e3 * drafter * of_all["device bytes"] / (world.of_device["bandwidth"] * of_all["device share"])
    return Costs(
        lambda nodes, answers: once_ms + weight * (answer_ms * answers + row_ms * (answers + nodes)),
        lambda answers: step_ms + draft_row_ms * (weight * answers - 1),
        of_all["device launch ms"] + device_ms,
    )


def fit(world: World, way: Way) -> int:
    """Users whose keys and values the GPUs hold together, beside the target, and its drafter if that is there."""
    target, of_all = world.of_target, world.of_all
    drafter = target["drafter"] if way == "auto" else 0.0  # the head is the target's
    room = world.of_gpu["memory"] * of_all["memory share"] * world.gpus - (target["weights"] + drafter) * BYTES
    return max(0, int(room // (target["kv"] * of_all["context"])))


def serve(world: World, way: Way, users: int) -> float:
    """Tokens a second that each of so many users gets; few of them are simulated."""
    few, acceptance = min(users, SIMULATED), world.of_all["acceptance"]
    rates = crowd_rates(few, way, acceptance, world.of_all["one way ms"], gpu_costs(world, users / few), is_known=True)
    return fmean(rates)


def crowd_rates(
    users: int, way: Way, acceptance: float, one_way_ms: float, costs: Costs, *, is_known: bool = False
) -> list[float]:
    """Tokens a second of each user. Prompts have been read; everybody's answer is long, and rates are taken after a
    while, so that only the steady state counts.

    Args:
        is_known: the server has served such a load before.
    """
    time = VirtualTime()
    server = SimulatedServer(time, costs, measured=is_known)
    if is_known:
        server.learn_costs(users)
    drafting = {"plain": None, "streamed": DraftingSettings("device"), "auto": DraftingSettings("auto")}[way]
    crowd = [
        SimulatedUser(
            time,
            server,
            ScriptedText(LONGEST, by_chance(acceptance, number)),
            SimulatedLink.of_delay(one_way_ms),
            drafting,
            seed=number,
            own_acceptance=acceptance if way == "auto" else None,
        )
        for number in range(users)
    ]
    for user in crowd:
        user.ask(LONGEST)
    forwards = max(1, users // MOST_ROWS)  # in which everybody steps once
    time.run(lambda: server.forwards >= SETTLE_ROUNDS * forwards)
    began_ms, before = time.now_ms, [len(user.arrivals_ms) for user in crowd]
    time.run(lambda: server.forwards >= (SETTLE_ROUNDS + TIMED_ROUNDS) * forwards)
    got = [len(user.arrivals_ms) for user in crowd]
    if max(got) >= LONGEST:
        raise InternalError("A simulated answer ended before rates were taken.")
    return [1e3 * (now - earlier) / (time.now_ms - began_ms) for now, earlier in zip(got, before, strict=True)]


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


def comparisons(seeds: int, folder: Path | None = None) -> Iterator[Comparison]:
    """A row for each link that stays the same and each way in which an oracle's chains were drafted; each answer is
    simulated with the same luck, step, rows and link.

    Args:
        folder: of results, those of other machines in folders of it; None: the checkout's.
    """
    links, folder = {link.name: link for link in LINKS}, folder or (checkout_root() or Path()) / "bench" / "results"
    found = [pair for each in (folder, *sorted(folder.glob("[!.]*/"))) for pair in read_folder(each).items()]
    for name, result in found:
        origin = ResultOrigin.of(result)
        for link in (each for each in result.get("links", ()) if result.get("has_oracles") and each in links):
            rounds = [each for each in result["rounds"] if each["link"] == link]
            of_link = partial(_pair, SimulatedLink(links[link].conditions), result, seeds)
            for method in dict.fromkeys(method for each in rounds for method in each["answers"]):
                drafter, _, way = method.rpartition(": ")
                if way in WAYS and "trees" not in drafter:
                    pairs = [of_link(each, method) for each in rounds]
                    measured, simulated = (round(median(side), 3) for side in zip(*pairs, strict=True))
                    yield Comparison(name, f"{origin.machine}, {origin.commit}", link, method, measured, simulated)


def _pair(
    link: SimulatedLink, result: Mapping[str, Any], seeds: int, each: Mapping[str, Any], method: str
) -> tuple[float, float]:
    """How many times plain streaming's speed one answer had, measured and simulated."""
    drafter, _, way = method.rpartition(": ")
    [answer], plain = each["answers"][method], each["answers"][PLAIN]
    measured = _rate(answer) / fmean(_rate(one) for one in plain)
    step_ms, script = result["costs"]["step_ms"], Script((), float(drafter.partition(", ")[2]), 0, 1)
    costs = Costs.of_rows(step_ms, RowShares.of_times(step_ms, result["costs"]["times"]), DRAFT_MS)
    of_answer = partial(
        simulate,
        lambda number: script.right_at(each["prompt_tokens"] + number),
        link,
        tokens=answer["tokens"],
        costs=costs,
        round_length=result["effort"]["chain"],
    )
    speeds = [
        of_answer(seed=seed, drafting=WAYS[way]).tokens_per_s / of_answer(seed=seed).tokens_per_s
        for seed in range(seeds)
    ]
    return measured, fmean(speeds)


def _rate(answer: Mapping[str, Any]) -> float:
    """Tokens a second after the first."""
    return (int(answer["tokens"]) - 1) / (float(answer["seconds"]) - float(answer["first_ms"]) / 1e3)
