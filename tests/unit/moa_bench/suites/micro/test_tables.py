"""The suite's tables: what is measured is shown, what is not is left out."""

from __future__ import annotations

from typing import Any

from moa_bench.harness.byte_counter import SocketBytes
from moa_bench.report.spread import Spread
from moa_bench.suites.micro.serving import SocketTraffic
from moa_bench.suites.micro.tables import render
from moa_bench.suites.micro.verification import VerificationCost


def test_every_result_says_what_it_depends_on(facts: dict[str, Any]) -> None:
    assert render(facts) == (
        "Measured 2026-01-02 on A CPU (2 cores), one thread each, server and client pinned to a core each; A target; "
        "numpy 2; commit abc.\n"
    )


def test_measurements_become_tables(facts: dict[str, Any]) -> None:
    text = render(
        facts
        | {
            "level": "int8",
            "execution": "avx2, 1 threads",
            "prefix_tokens": 256,
            "verification": [
                VerificationCost("tree", 8, 8, Spread.of([10.0]), Spread.of([11.0]), Spread.of([1.1])),
            ],
            "traffic": [SocketTraffic("split", 50, 64, SocketBytes(1, 2), 3.5, 4.5, 1.25)],
        }
    )
    assert "After 256 tokens, int8 (avx2, 1 threads)." in text
    assert "| tree | 8 | 10.0 (10.0 to 10.0) | 8 | 11.0 (11.0 to 11.0) | 1.10 (1.10 to 1.10) |" in text
    assert "Answers of 64 tokens." in text
    assert "| split | 50 | 1.25 | 3.5 | 4.5 | 1 | 2 |" in text
    assert "Drafting" not in text
