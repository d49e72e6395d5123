"""How many users GPUs serve at a speed, by each way to draft.

Every number that goes in is in `assumptions.csv`, with its unit and its source: published, measured, derived, assumed.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from moa_client.drafting.settings import DraftingSettings
from moa_server.engine.schedule import MOST_ROWS
from moa_shared.errors import InternalError
from moa_shared.programs.progress import make_progress
from netsim.core.conditions import Conditions, DelaySpec

from moa_bench.registry import ScaleEffort
from moa_bench.report import table
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.scale.simulator import Costs, ScriptedText, SimulatedServer, SimulatedUser, VirtualTime, by_chance

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


def measure(effort: ScaleEffort, run: SuiteRun) -> Result:
    worlds = all_worlds()[: effort.worlds]
    found = []
    with make_progress().task("Simulated", len(worlds)) as task:
        for world in worlds:
            found.append(run.keep(f"scale {world.name}", partial(_world, world, effort)))
            task.advance(1)
    return {"target": "simulated", "assumptions": rows(worlds), "worlds": found}


@dataclass(frozen=True, slots=True)
class World:
    """A case: what it is of, and what is assumed of each, in the units of `assumptions.csv`."""

    names: tuple[str, str, str, str]  # of target, GPU and device, and OF_ALL
    gpus: int
    values: tuple[Mapping[str, float], ...]

    @property
    def name(self) -> str:
        target, gpu, device, _ = self.names
        return f"{target}, {f'{self.gpus} x ' if self.gpus > 1 else ''}{gpu}, {device}"


def all_worlds() -> list[World]:
    found: dict[str, dict[str, float]] = {}
    for each in _table():
        found.setdefault(each["of"], {})[each["what"]] = float(each["value"])
    named = [((target, gpu, device, OF_ALL), gpus) for target, gpu, gpus, device in CASES]
    return [World(names, gpus, tuple(found[name] for name in names)) for names, gpus in named]


def rows(worlds: Sequence[World]) -> list[list[str]]:
    """Each assumption of these cases: of what, which, how much, what kind of figure, whence."""
    parts = {part for world in worlds for part in world.names}
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
    return {"name": world.name, "gpus": world.gpus, "price": world.values[1]["price"], "ways": ways}


def gpu_costs(world: World, weight: float = 1.0) -> Costs:
    """A forward reads its bytes and computes its rows, spread over the GPUs; on an H100 that takes the sum of both, not
    the longer (docs/measurements/scale.md). A draft step of a device reads the drafter and the head.

    `weight`: users for each that is simulated, who step together. The price of a row in tokens is the same for the few
    as for the crowd: the rate of tokens is so many times lower, and a row takes as much longer.
    """
    target, gpu, device, of_all = world.values
    bytes_a_ms = gpu["bandwidth"] * of_all["bandwidth share"] * world.gpus / 1e3
    flops_a_ms = gpu["flops"] * of_all["flops share"] * world.gpus / 1e3
    launch_ms = of_all["launch ms"] + (world.gpus > 1) * 2 * target["layers"] * of_all["all reduce us"] / 1e3
    once_ms = launch_ms + target["weights"] * BYTES / bytes_a_ms
    answer_ms, row_ms = target["kv"] * of_all["context"] / bytes_a_ms, target["weights"] * FLOPS / flops_a_ms
    drafter = target["drafter"] + target["head"]
    step_ms, draft_row_ms = of_all["draft launch ms"] + drafter * BYTES / bytes_a_ms, drafter * FLOPS / flops_a_ms
    device_ms = 1e3 * drafter * of_all["device bytes"] / (device["bandwidth"] * of_all["device share"])
    return Costs(
        lambda nodes, answers: once_ms + weight * (answer_ms * answers + row_ms * (answers + nodes)),
        lambda answers: step_ms + draft_row_ms * (weight * answers - 1),
        of_all["device launch ms"] + device_ms,
    )


def fit(world: World, way: Way) -> int:
    """Users whose keys and values the GPUs hold together, beside the target, and its drafter if that is there."""
    target, gpu, _, of_all = world.values
    drafter = target["drafter"] if way == "auto" else 0.0  # the head is the target's
    room = gpu["memory"] * of_all["memory share"] * world.gpus - (target["weights"] + drafter) * BYTES
    return max(0, int(room // (target["kv"] * of_all["context"])))


def serve(world: World, way: Way, users: int) -> float:
    few, of_all, costs = min(users, SIMULATED), world.values[-1], gpu_costs(world, users / min(users, SIMULATED))
    return fmean(crowd_rates(few, way, of_all["acceptance"], of_all["one way ms"], costs))


def crowd_rates(users: int, way: Way, acceptance: float, one_way_ms: float, costs: Costs) -> list[float]:
    """Tokens a second of each user, in the steady state, of a server that has served such a load before."""
    time = VirtualTime()
    server = SimulatedServer(time, costs)
    server.learn_costs(users)
    drafting = {"plain": None, "streamed": DraftingSettings("device"), "auto": DraftingSettings("auto")}[way]
    crowd = [
        SimulatedUser(
            time,
            server,
            ScriptedText(LONGEST, by_chance(acceptance, number)),
            Conditions(delay=DelaySpec(one_way_ms)),
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


RATES = (10.0, 20.0, 30.0, 50.0)
NAMES = {"plain": "plain serving", "streamed": "devices' drafts, streamed", "auto": "ours (auto)"}


@dataclass(frozen=True, slots=True)
class Load:
    users: int
    rate: float


def render(result: Mapping[str, Any]) -> str:
    parts = [_world_table(world) for world in result["worlds"]]
    parts.append("Every assumption.\n\n" + table(["of", "what", "value", "kind", "source"], result["assumptions"]))
    return "\n".join(parts)


def _world_table(world: Mapping[str, Any]) -> str:
    lines, gpus = [], world["gpus"]
    for way in world["ways"]:
        loads = [Load(**load) for load in way["loads"]]
        cells = [at_rate(rate, loads, way["fit"]) for rate in RATES]
        users = cells[RATES.index(20.0)][0]
        dollars = f"{world['price'] * gpus / (users * 20.0 * 3600) * 1e6:.2f}" if users else ""
        lines.append([NAMES[way["way"]], *(_words(*cell, gpus) for cell in cells), dollars])
    head = ["way", *(f"users a GPU at {rate:g} tokens/s" for rate in RATES), "$ a million tokens at 20 tokens/s"]
    return f"{world['name']}; m: limited by memory, not by speed.\n\n" + table(head, lines)


def at_rate(rate: float, loads: Sequence[Load], most: float) -> tuple[float, str]:
    """The number of users up to which each gets `rate`, and what keeps more from it: speed, or memory for `most`.

    Between two numbers, it is by the time that a token takes.
    """
    users, limit, before = 0.0, "simulated", None
    for load in loads:
        if load.rate < rate:
            limit = "speed"
            if before is not None:
                share = (1 / rate - 1 / before.rate) / (1 / load.rate - 1 / before.rate)
                users = round(before.users + share * (load.users - before.users), 1)
            break
        users, before = float(load.users), load
    return (most, "memory") if users >= most else (users, limit)


def _words(users: float, limit: str, gpus: int) -> str:
    sign = {"speed": "", "memory": " m", "simulated": " or more"}[limit]
    return f"{users / gpus:.0f}{sign}" if users else "none"
