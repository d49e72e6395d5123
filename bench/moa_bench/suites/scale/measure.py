"""All cases, fed by assumptions with sources and checked against what was measured here."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.report.report import checkout_root
from moa_bench.suite import Result, Run
from moa_bench.suites.scale.assumptions import World, rows
from moa_bench.suites.scale.costs import device_draft_ms, gpu_costs
from moa_bench.suites.scale.figures import WAYS, Way
from moa_bench.suites.scale.published import PAPER, all_worlds
from moa_bench.suites.scale.sensitivity import RATE, effect, users_a_gpu
from moa_bench.suites.scale.suite import ScaleEffort
from moa_bench.suites.scale.users import best_length, fit, loads
from moa_bench.suites.scale.validation import validate

SLOWEST = 10.0  # tokens a second: no table asks for less


def measure(effort: ScaleEffort, run: Run, results: Path | None = None) -> Result:
    """Simulates all; each world, each varied assumption and the check are cells.

    Args:
        results: the folder of measured results; None: the checkout's.

    Raises:
        DataError: no measured results are there, or they cannot be read.
    """
    worlds = all_worlds()[: effort.worlds]
    root = checkout_root()
    folder = results or (root / "bench" / "results" if root is not None else Path("bench/results"))
    found: Result = {"assumptions": rows(worlds), "worlds": [], "sensitivity": []}
    acceptances = tuple(sorted({PAPER.value, *effort.acceptances}))
    names = list(worlds[0].assumptions())
    steps = 1 + len(worlds) + len(effort.varied) * len(names)
    with make_progress().task("Simulated", steps) as task:
        for world in worlds:
            found["worlds"].append(run.keep(f"scale {world.name}", partial(_world, world, acceptances, effort)))
            task.advance(1)
        for world in (worlds[number] for number in effort.varied):
            effects = []
            for name in names:
                effects.append(run.keep(f"scale {world.name} {name}", partial(_effect, world, name)))
                task.advance(1)
            case = {"world": world.name, "rate": RATE, "base": users_a_gpu(world, "auto"), "effects": effects}
            found["sensitivity"].append(case)
        checked = run.keep("scale validation", lambda: {"rows": validate(folder, most_users=effort.most_users)})
        found["validation"] = checked["rows"]
        task.advance(1)
    return found


def _effect(world: World, name: str) -> dict[str, Any]:
    return asdict(effect(world, "auto", name))


def _world(world: World, acceptances: tuple[float, ...], effort: ScaleEffort) -> dict[str, Any]:
    """All ways of one case, at each acceptance."""

    def numbers(way: Way) -> list[int]:
        return sorted({*effort.numbers, max(1, fit(world, way))})

    ways: list[dict[str, Any]] = []
    for way in WAYS:
        for acceptance in (None,) if way == "plain" else acceptances:
            value = acceptance or world.acceptance.value
            case = replace(world, acceptance=replace(world.acceptance, value=value))
            served = loads(case, way, numbers(way), slowest=SLOWEST)
            lengths = {load.users: best_length(case, load.users, colocated=True) for load in served}
            ways.append(
                {
                    "way": way,
                    "acceptance": acceptance,
                    "fit": fit(world, way),
                    "loads": [asdict(load) for load in served],
                    "lengths": list(lengths.values()),
                }
            )
    costs = gpu_costs(world)
    return {
        "name": world.name, "gpus": world.gpus, "price": world.gpu.price.value, "paper": world.acceptance.value,
        "costs": asdict(costs), "device_draft_ms": device_draft_ms(world), "ways": ways,
    }  # fmt: skip
