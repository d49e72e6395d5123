"""All cases, fed by assumptions with sources."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.scale import ScaleEffort
from moa_bench.suites.scale.assumptions import World, all_worlds, rows
from moa_bench.suites.scale.figures import WAYS
from moa_bench.suites.scale.users import device_draft_ms, fit, gpu_costs, loads

SLOWEST = 10.0  # tokens a second: no table asks for less


def measure(effort: ScaleEffort, run: SuiteRun) -> Result:
    """Simulates all; each world is a cell."""
    worlds = all_worlds()[: effort.worlds]
    acceptances = tuple(sorted({worlds[0].acceptance, *effort.acceptances}))
    found = []
    with make_progress().task("Simulated", len(worlds)) as task:
        for world in worlds:
            found.append(run.keep(f"scale {world.name}", partial(_world, world, acceptances, effort)))
            task.advance(1)
    return {"assumptions": rows(worlds), "worlds": found}


def _world(world: World, acceptances: tuple[float, ...], effort: ScaleEffort) -> dict[str, Any]:
    """All ways of one case, at each acceptance."""
    ways: list[dict[str, Any]] = []
    for way in WAYS:
        most = fit(world, way)
        numbers = sorted({*effort.numbers, max(1, most)})
        for acceptance in (None,) if way == "plain" else acceptances:
            case = replace(world, acceptance=acceptance or world.acceptance)
            served = loads(case, way, numbers, slowest=SLOWEST)
            found = {"acceptance": acceptance, "fit": most, "loads": [asdict(load) for load in served]}
            ways.append({"way": way} | found)
    return {
        "name": world.name, "gpus": world.gpus, "price": world.gpu.price, "paper": world.acceptance,
        "costs": asdict(gpu_costs(world)), "device_draft_ms": device_draft_ms(world), "ways": ways,
    }  # fmt: skip
