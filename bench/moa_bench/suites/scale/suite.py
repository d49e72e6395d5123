"""`moa-bench scale`: users a GPU, cost and bandwidth on hardware that is not here; virtual time, no model.

Fed by assumptions with sources, checked against what was measured here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from moa_shared.programs.progress import make_progress

from moa_bench.report.experiment import Experiment
from moa_bench.report.report import SCALE, checkout_root
from moa_bench.suites.scale import picture as pictures
from moa_bench.suites.scale import tables
from moa_bench.suites.scale.assumptions import World, rows
from moa_bench.suites.scale.costs import device_draft_ms, gpu_costs
from moa_bench.suites.scale.published import OURS, PAPER, all_worlds
from moa_bench.suites.scale.sensitivity import RATE, effect, users_a_gpu
from moa_bench.suites.scale.users import WAYS, Way, best_length, fit, loads
from moa_bench.suites.scale.validation import validate

SLOWEST = 10.0  # tokens a second: no table asks for less
Keep = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    """How much is simulated.

    Args:
        worlds: how many of the cases.
        acceptances: of drafts, besides the paper's.
        numbers: of users, besides those who fit.
        varied: cases whose assumptions are varied.
        suites: which measurements the simulator is checked against.
    """

    worlds: int = 5
    acceptances: tuple[float, ...] = (0.35, OURS.value, 0.9)
    numbers: tuple[int, ...] = (1, 16, 64, 128, 384, 800)
    varied: tuple[int, ...] = (0, 4)
    quick: bool = False


QUICK = ScaleEffort(1, (), (1, 64, 384), (), quick=True)


def estimate_s(effort: ScaleEffort) -> float:
    """About how long it takes."""
    runs = effort.worlds * (1 + 4 * (1 + len(effort.acceptances))) * (1 + len(effort.numbers))
    return 0.2 * runs + 45 * len(effort.varied) + (5 if effort.quick else 15)


def measure(effort: ScaleEffort, keep: Keep, results: Path | None = None) -> dict[str, Any]:
    """Simulates all.

    Args:
        results: the folder of measured results; None: the checkout's.
    """
    worlds = all_worlds()[: effort.worlds]
    root = checkout_root()
    folder = results or (root / "bench" / "results" if root is not None else Path("bench/results"))
    found: dict[str, Any] = {
        "suite": "scale", "quick": effort.quick, "effort": dataclasses.asdict(effort),
        "assumptions": rows(worlds), "worlds": [], "sensitivity": [],
    }  # fmt: skip
    acceptances = tuple(sorted({PAPER.value, *effort.acceptances}))
    names = list(worlds[0].assumptions())
    steps = 1 + len(worlds) + len(effort.varied) * len(names)
    with make_progress().task("Simulated", steps) as task:
        for world in worlds:
            found["worlds"].append(keep(f"scale {world.name}", lambda world=world: _world(world, acceptances, effort)))  # type: ignore[misc]
            task.advance(1)
        for number in effort.varied:
            world = worlds[number]
            effects = []
            for name in names:
                effects.append(
                    keep(
                        f"scale {world.name} {name}",
                        lambda world=world, name=name: dataclasses.asdict(effect(world, "auto", name)),  # type: ignore[misc]
                    )
                )
                task.advance(1)
            found["sensitivity"].append(
                {"world": world.name, "rate": RATE, "base": users_a_gpu(world, "auto"), "effects": effects}
            )
        found["validation"] = keep("scale validation", lambda: {"rows": validate(folder, quick=effort.quick)})["rows"]
        task.advance(1)
    return found


def _world(world: World, acceptances: tuple[float, ...], effort: ScaleEffort) -> dict[str, Any]:
    """All ways of one case, at each acceptance."""

    def numbers(way: Way) -> list[int]:
        return sorted({*effort.numbers, max(1, fit(world, way))})

    ways: list[dict[str, Any]] = []
    for way in WAYS:
        for acceptance in (None,) if way == "plain" else acceptances:
            value = acceptance or world.acceptance.value
            case = dataclasses.replace(world, acceptance=dataclasses.replace(world.acceptance, value=value))
            served = loads(case, way, numbers(way), slowest=SLOWEST)
            lengths = {load.users: best_length(case, load.users, colocated=True) for load in served}
            ways.append(
                {
                    "way": way,
                    "acceptance": acceptance,
                    "fit": fit(world, way),
                    "loads": [dataclasses.asdict(load) for load in served],
                    "lengths": list(lengths.values()),
                }
            )
    costs = gpu_costs(world)
    return {
        "name": world.name, "gpus": world.gpus, "price": world.gpu.price.value, "paper": world.acceptance.value,
        "costs": dataclasses.asdict(costs), "device_draft_ms": device_draft_ms(world), "ways": ways,
    }  # fmt: skip


def render(result: Mapping[str, Any]) -> str:
    """All tables."""
    return tables.render(result)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """All pictures.

    Raises:
        ConfigError: matplotlib is not there, or a file cannot be written.
    """
    return pictures.draw(result, folder)


def run_scale(*, quick: bool, json_file: Path | None) -> None:
    """Simulate and report; pictures go to docs/img of the checkout, if the results do.

    Raises:
        MoaError: a file cannot be written or read.
    """
    effort = QUICK if quick else ScaleEffort()
    click.echo(f"About {estimate_s(effort):.0f} s.", err=True)
    experiment = Experiment("scale", quick=quick, json_file=json_file)
    result = measure(effort, lambda _, simulate: simulate())
    experiment.result |= result
    experiment.publish(render(result), page=SCALE)
    if (picture := experiment.picture_path("scale")) is not None:
        draw(result, picture.parent)
