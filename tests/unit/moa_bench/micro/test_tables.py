"""The suite's tables: what is measured is shown, what is not is left out."""

from __future__ import annotations

from typing import Any

from moa_bench.byte_counter import Bytes
from moa_bench.micro.equality import Equality
from moa_bench.micro.rounding import Flips
from moa_bench.micro.serving import Traffic
from moa_bench.micro.tables import render

BASE: dict[str, Any] = {
    "machine": {
        "time": "2026-01-02T03:04:05+00:00", "cpu": "A CPU", "cores": 2, "packages": {"torch": "2"}, "commit": "abc",
    },
    "pinned": True,
    "target": "A target",
}  # fmt: skip


def test_every_result_says_what_it_depends_on() -> None:
    assert render(BASE) == (
        "Measured 2026-01-02 on A CPU (2 cores), one thread each, server and client pinned to a core each; A target; "
        "torch 2; commit abc.\n"
    )


def test_measurements_become_tables() -> None:
    text = render(
        BASE
        | {
            "flips": [Flips("tree", 62, 8, positions=400, flipped=6, near_ties=5)],
            "traffic": [Traffic("split", 50, 64, Bytes(1, 2), 3.5, 4.5, 1.25)],
            "equality": [Equality("split", 4, 64, 4)],
        }
    )
    assert "| tree of 62 | 400 | 6 | 1.50 % | 5 |" in text
    assert "Answers of 64 tokens." in text
    assert "| split | 50 | 1.25 | 3.5 | 4.5 | 1 | 2 |" in text
    assert "| split | 4 | 64 | 4 |" in text
    assert "Drafting" not in text
