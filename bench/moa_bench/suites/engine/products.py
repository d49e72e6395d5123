"""`moa-bench engine --kernels`: products by format and rows on one core, beside what its instructions and memory allow.

The weights are random blocks that no cache holds. Each round measures all rows of a format, the instructions alone, and
reading memory.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from moa_kernels import FORMATS, Linear, Tiles, pack, peak, set_threads, tile_bytes, variant_name
from moa_shared.programs.elapsed import ms_since
from moa_shared.programs.progress import make_progress

from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.spread import Spread, paired_ratio
from moa_bench.suite import Result
from moa_bench.suites.engine import EngineEffort
from moa_bench.suites.engine.limit import READ_BYTES, READING, make_array, time_reading

INPUTS = 4096
PEAK = "the instructions alone"
PEAK_ROUNDS = 2_000_000


@dataclass(frozen=True, slots=True)
class ProductSpeed:
    """The speed of products in one format."""

    kind: str
    bits: float  # of a weight in the tiles
    rows: int
    gmacs: Spread  # billions of products of weight and activation a second
    of_peak: Spread  # share of what the instructions alone reach in the same round
    gb_s: Spread  # of the tiles
    of_memory: Spread  # share of reading memory in the same round


def measure_products(effort: EngineEffort) -> Result:
    """Products in each format, on one thread and the variant of the kernels in use (`MOA_KERNELS`)."""
    variant = variant_name()
    set_threads(1)
    array, speeds = make_array(), []
    with make_progress().task("Products", len(FORMATS)) as task:
        for kind in FORMATS:
            speeds += measure_format(kind, effort, partial(time_reading, array))
            task.advance(1)
    return {"name": f"products-{variant}", "target": "random weights", "variant": variant, "products": speeds}


def measure_format(kind: str, effort: EngineEffort, read: Callable[[], float]) -> list[ProductSpeed]:
    """The speeds of a format. `read`: milliseconds of reading READ_BYTES."""
    tiles = random_tiles(kind, effort.tile_bytes)
    linear = Linear([tiles])
    random = np.random.default_rng(1)
    cases = {
        str(rows): partial(_time, linear, random.normal(size=(rows, INPUTS)).astype(np.float32))
        for rows in effort.product_rows
    }
    taken = collect_interleaved(cases | {PEAK: _time_peak, READING: read}, effort.products, warm_up=1)
    most = taken[PEAK]
    reading = [ms * tiles.memory.nbytes / READ_BYTES for ms in taken[READING]]
    speeds = []
    for rows in effort.product_rows:
        ms, products = taken[str(rows)], rows * tiles.outputs * INPUTS
        speeds.append(
            ProductSpeed(
                kind,
                8 * tiles.memory.nbytes / (tiles.outputs * INPUTS),
                rows,
                Spread.of([products / each / 1e6 for each in ms]),
                paired_ratio([products / each for each in ms], most),
                Spread.of([tiles.memory.nbytes / each / 1e6 for each in ms]),
                paired_ratio(reading, ms),
            )
        )
    return speeds


def random_tiles(kind: str, nbytes: int) -> Tiles:
    """A packed matrix of INPUTS inputs that takes at least so many bytes.

    The bytes of its blocks are such that wherever a format has a scale or an exponent, it is an ordinary number.
    """
    shape = FORMATS[kind]
    row = INPUTS // shape.values * shape.size
    outputs = -(-nbytes // row // 16) * 16
    blocks = np.random.default_rng(1).integers(0, 256, outputs * row, np.uint8) & np.uint8(0x1B) | np.uint8(0x20)
    memory = np.empty(tile_bytes(kind, outputs, INPUTS), np.uint8)
    pack(kind, blocks, outputs, INPUTS, memory)
    return Tiles(kind, outputs, INPUTS, memory)


def _time(linear: Linear, rows: np.ndarray) -> float:
    began = time.perf_counter()
    linear(rows)
    return ms_since(began)


def _time_peak() -> float:
    """Products a millisecond."""
    began = time.perf_counter()
    count = peak(PEAK_ROUNDS)
    return count / ms_since(began)
