"""Which assumptions matter: each is halved and doubled alone, and ranked by what that does to users a GPU."""

from __future__ import annotations

import math

from moa_bench.suites.scale.assumptions import World
from moa_bench.suites.scale.figures import Effect, Way, users_at
from moa_bench.suites.scale.users import fit, loads

FACTORS = (0.5, 2.0)
RATE = 50.0  # tokens a second a user: where speed and memory both limit
NUMBERS = (1, 32, 96, 192, 384, 768)


def users_a_gpu(world: World, way: Way, rate: float = RATE) -> float:
    """Users that get the rate and fit."""
    most = fit(world, way)
    return users_at(rate, loads(world, way, NUMBERS, slowest=rate), most).users / world.gpus


def effect(world: World, way: Way, name: str, rate: float = RATE) -> Effect:
    """Varies one assumption."""
    halved, doubled = (users_a_gpu(world.varied(name, factor), way, rate) for factor in FACTORS)
    low, high = sorted((halved, doubled))
    swing = high / low if low else math.inf if high else 1.0
    return Effect(name, round(halved, 1), round(doubled, 1), round(swing, 2) if math.isfinite(swing) else 1e9)
