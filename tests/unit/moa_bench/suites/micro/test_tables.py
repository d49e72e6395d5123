"""The suite's tables: what is measured is shown, and what it depends on."""

from __future__ import annotations

from typing import Any

from moa_bench.report.spread import Spread
from moa_bench.suites.micro.drafting import DraftCost
from moa_bench.suites.micro.tables import render
from moa_bench.suites.micro.verification import VerificationCost


def test_measurements_become_tables(facts: dict[str, Any]) -> None:
    text = render(
        facts
        | {
            "level": "int8",
            "execution": "avx2, 1 threads",
            "drafter": "shipped, N = 3",
            "prefix_tokens": 256,
            "verification": [
                VerificationCost("tree", 8, 8, Spread.of([10.0]), Spread.of([11.0]), Spread.of([1.1])),
            ],
            "drafting": [DraftCost("chain of 5", Spread.of([5.0]), Spread.of([0.5]))],
        }
    )
    assert text.startswith("Measured 2026-01-02 on A CPU (2 cores), one thread; A target; numpy 2; commit abc.\n")
    assert "After 256 tokens, int8 (avx2, 1 threads)." in text
    assert "| tree | 8 | 10.0 (10.0 to 10.0) | 8 | 11.0 (11.0 to 11.0) | 1.10 (1.10 to 1.10) |" in text
    assert "The drafter: shipped, N = 3; weights in int8." in text
    assert "| chain of 5 | 5.00 (5.00 to 5.00) | 0.500 (0.500 to 0.500) |" in text
