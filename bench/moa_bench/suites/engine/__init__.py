"""`moa-bench engine`: what a forward costs on each engine; or the kernels' products; or models of real sizes."""

from dataclasses import dataclass

import click

from moa_bench.harness.shapes import FORMATS, SHAPES
from moa_bench.options import option
from moa_bench.report.report import ENGINE
from moa_bench.suite import Suite, SuiteInputs


@dataclass(frozen=True, slots=True)
class EngineEffort:
    """What to measure, and how much of it."""

    kernels: bool = option(False, "Measure the kernels' products instead, by format and rows; needs no model.")
    shapes: tuple[str, ...] = option(
        (), "Measure a model of this real size instead (repeat).", "--shape", choices=tuple(SHAPES)
    )
    formats: tuple[str, ...] = option(
        (), "How its random weights are stored (repeat).", "--format", shown="q4_k_m", choices=tuple(FORMATS)
    )
    contexts: tuple[int, ...] = (128, 1000)  # tokens before the forward
    rows: tuple[int, ...] = (1, 5, 8, 16, 32, 62)  # of binary trees
    rounds: int = 9  # of each forward
    prompts: int = 3  # times that a prompt as long as the context is read
    context: int = 128  # of models in real sizes: tokens of the prompt, and before each forward
    tile_bytes: int = 1 << 27  # of the weights of a product, at least
    product_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # of activations
    products: int = 7  # of each one


def refuse(effort: EngineEffort, inputs: SuiteInputs) -> None:
    if effort.kernels and effort.shapes:
        raise click.UsageError("--kernels and --shape measure different things: give one of them.")
    if effort.formats and not effort.shapes:
        raise click.UsageError("--format needs --shape.")


def estimate_s(effort: EngineEffort) -> float:
    return 60.0 + 15.0 * effort.rounds if not effort.kernels else 10.0 + 20.0 * effort.products


SUITE = Suite(
    "engine",
    "The target's forward on the kernels, torch and llama.cpp, over rows and contexts; memory. "
    "With --shape: models of real sizes with random weights, which are made on the spot and cached.",
    "moa_bench.suites.engine",
    ENGINE,
    EngineEffort(),
    EngineEffort(
        contexts=(32,), rows=(1, 8), rounds=1, prompts=1, context=16, tile_bytes=1 << 20, product_rows=(1, 8),
        products=1,
    ),
    ("model", "pin", "llama_cpp"),
    estimate_s,
    refuse,
)  # fmt: skip
