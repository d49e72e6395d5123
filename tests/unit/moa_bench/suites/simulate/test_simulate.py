"""The simulation next to a measured result, and what is said of the distance."""

from __future__ import annotations

from typing import Any

import pytest
from moa_bench.suites.simulate import SimulateEffort
from moa_bench.suites.simulate.measure import comparisons
from moa_bench.suites.simulate.tables import render
from moa_bench.suites.split.figures import PLAIN


def result(seconds: float) -> dict[str, Any]:
    """A step of 50 ms over 5G; 41 tokens, of which the first comes after 0.2 s."""

    def answer(seconds: float) -> dict[str, Any]:
        return {"tokens": 41, "first_ms": 200.0, "seconds": seconds}

    plain, drafted = [answer(2.2)] * 2, [answer(seconds)]
    answers = {PLAIN: plain, "oracle, 0.8: streamed": drafted, "oracle, 0.8, trees: streamed": drafted}
    return {
        "machine": {"cpu": "AMD", "cores": 2, "commit": "abc"}, "links": {"5G": {}, "5G, drive": {}}, "effort": {"chain": 5},
        "costs": {"step_ms": 50.0, "times": [[2, 51.0], [32, 81.0]]},
        "rounds": [{"link": link, "prompt_tokens": 30, "answers": answers} for link in ("5G", "5G, drive")],
    }  # fmt: skip


def test_only_chains_over_links_that_stay_the_same_are_simulated() -> None:
    (row,) = comparisons("split-8b", result(1.2), SimulateEffort(2))
    assert (row.result, row.origin, row.link, row.way) == (
        "split-8b", "AMD (2 cores), abc", "5G", "oracle, 0.8: streamed",
    )  # fmt: skip
    assert row.measured == 2.0
    assert 1.5 < row.simulated < 4.0
    assert row.error == pytest.approx(row.measured / row.simulated - 1)


def test_what_misses_is_counted() -> None:
    near, far = (next(iter(comparisons("split-8b", result(each), SimulateEffort(1)))) for each in (1.2, 2.2))
    text = render({"rows": [near, far]})
    assert "of split-8b (AMD (2 cores), abc): " in text
    assert "1 of 2 are within 15%" in text or "0 of 2 are within 15%" in text
    assert text.rstrip().endswith("| no |")
    assert render({"rows": []}).startswith("Nothing to check yet")
