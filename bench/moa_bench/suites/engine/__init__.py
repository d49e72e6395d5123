"""`moa-bench engine`: what a forward costs on each engine; or the kernels' products."""

from dataclasses import dataclass

import click

from moa_bench.harness.shapes import SLOW_STEP_S
from moa_bench.options import option
from moa_bench.suite import Suite, SuiteInputs


@dataclass(frozen=True, slots=True)
class EngineEffort:
    """What to measure, and how much of it."""

    kernels: bool = option(False, "Measure the kernels' products instead, by format and rows; needs no model.")
    contexts: tuple[int, ...] = (128, 1000)  # tokens before the forward
    rows: tuple[int, ...] = (1, 5, 8, 16, 32, 62)  # of binary trees
    rounds: int = 9  # of each forward
    prompts: int = 3  # times that a prompt as long as the context is read
    tile_bytes: int = 1 << 27  # of the weights of a product, at least
    product_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # of activations
    products: int = 7  # of each one


def refuse(effort: EngineEffort, inputs: SuiteInputs) -> None:
    if effort.kernels and inputs.shape is not None:
        raise click.UsageError("--kernels and --shape measure different things: give one of them.")


def estimate_s(effort: EngineEffort, step_s: float) -> float:
    if effort.kernels:
        return 10.0 + 20.0 * effort.products
    return 60.0 + effort.rounds * (15.0 if step_s < SLOW_STEP_S else 330.0 * step_s)  # torch is not asked of large ones


SUITE = Suite(
    "engine",
    "The target's forward on the kernels, torch and llama.cpp, over rows and contexts; memory.",
    "moa_bench.suites.engine",
    EngineEffort(),
    EngineEffort(
        contexts=(32,), rows=(1, 8), rounds=1, prompts=1, tile_bytes=1 << 20, product_rows=(1, 8),
        products=1,
    ),
    ("model", "pin", "llama_cpp", "shape", "stored"),
    estimate_s,
    refuse,
)  # fmt: skip
