from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from moa_bench.suites.engine import EngineEffort
from moa_bench.suites.engine.products import INPUTS, measure_format, measure_products, random_tiles
from moa_bench.suites.engine.tables import render
from moa_kernels import FORMATS, Linear, set_threads, threads, variant_name

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")


@pytest.mark.parametrize("kind", FORMATS)
def test_random_blocks_are_ordinary_numbers(kind: str) -> None:
    tiles = random_tiles(kind, 1 << 16)
    assert tiles.memory.nbytes >= 1 << 16
    out = Linear([tiles])(np.ones((1, INPUTS), np.float32))
    assert np.all(np.isfinite(out))
    assert np.all(np.abs(out[out != 0]) > 1e-30)  # nothing near the numbers that processors compute slowly
    assert np.any(out)


def test_a_format_is_measured_beside_the_instructions_and_memory() -> None:
    speeds = measure_format("q4_k", EngineEffort(tile_bytes=1 << 16, product_rows=(1, 8), products=1), lambda: 10.0)
    assert [each.rows for each in speeds] == [1, 8]
    for each in speeds:
        assert each.bits == pytest.approx(4.625, abs=0.02)
        weights_a_byte = 8 / each.bits
        assert each.gmacs.median / each.gb_s.median == pytest.approx(each.rows * weights_a_byte, rel=0.01)
        assert each.of_memory.median > 0
        assert 0 < each.of_peak.median < 2


@pytest.fixture
def _same_threads() -> Iterator[None]:
    before = threads()
    yield
    set_threads(before)


@pytest.mark.usefixtures("_same_threads")
def test_all_formats_are_measured_and_shown(facts: dict[str, Any]) -> None:
    result = measure_products(EngineEffort(tile_bytes=1 << 16, product_rows=(1, 8), products=1))
    assert {each.kind for each in result["products"]} == set(FORMATS)
    shown = render(facts | result)
    assert "random weights" in shown
    assert all(f"| {kind} |" in shown for kind in FORMATS)
