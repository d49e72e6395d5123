"""The engine's tables: a row an engine, the limit last, empty cells where nothing was measured."""

from __future__ import annotations

from typing import Any

from moa_bench.report.spread import Spread
from moa_bench.suites.engine.limit import StepBytes
from moa_bench.suites.engine.measure import EngineCost, MemoryLimit, PromptCost
from moa_bench.suites.engine.products import ProductSpeed
from moa_bench.suites.engine.tables import render


def just(value: float) -> Spread:
    return Spread.of([value])


MEASURED: dict[str, Any] = {
    "forwards": [
        EngineCost("kernels, avx2", 128, 1, just(10.0), just(1.0)),
        EngineCost("kernels, avx2", 128, 8, just(14.0), just(1.4)),
        EngineCost("llama.cpp", 128, 1, just(22.0), just(1.0)),
    ],
    "prompts": [PromptCost("kernels, avx2", 128, just(1.2))],
    "memory": {"kernels, avx2": 241.3},
    "load_s": {"kernels, avx2": 0.84},
    "limits": [MemoryLimit(128, 100.0, just(12.0), just(8.0))],
}


def test_forwards_become_a_table_a_context(facts: dict[str, Any]) -> None:
    text = render(facts | MEASURED)
    assert "### A forward after 128 tokens, ms" in text
    assert "| kernels, avx2 | 10.0 | 14.0 | 1.40 |  |" in text
    assert "| llama.cpp | 22.0 |  |  |  |" in text
    assert "| memory limit | 8.0 |  |  |  |" in text
    assert "| kernels, avx2 | 1.20 | 241 | 0.8 |" in text
    assert "| llama.cpp | 128 | 22.0 (22.0 to 22.0) | 8.0 (8.0 to 8.0) | 2.75 |" in text


def test_products_become_a_table(facts: dict[str, Any]) -> None:
    speeds = [ProductSpeed("q4_k", 4.62, 8, just(92.0), just(0.51), just(6.0), just(0.3))]
    text = render(facts | {"variant": "avx2", "products": speeds})
    assert "| q4_k | 4.62 | 8 | 92 (92 to 92) | 51 % | 6.0 (6.0 to 6.0) | 30 % |" in text


def test_a_longer_context_reads_more() -> None:
    assert StepBytes(1000, 10).at(128) == 2280
