"""The tables of who drafts: ratios, the limit, and whether useless drafts cost little."""

from __future__ import annotations

from typing import Any

import pytest
from moa_bench.drafting import tables
from moa_bench.drafting.compared import Drafted
from moa_bench.drafting.effort import DraftingEffort
from moa_bench.drafting.limit import Limit
from moa_bench.harness.byte_counter import Bytes
from moa_bench.harness.padding import Padding
from moa_bench.micro.serving import Traffic
from moa_bench.network.network import Cell
from moa_bench.report.spread import Spread

LIMIT = Limit(
    2.1, 5.5, 14.2, 1.21, 0.4, Spread(30.0, 28.0, 33.0, 12), 1.304, Spread(1.3, 1.2, 1.4, 12), 1.01,
    Spread(1.25, 1.2, 1.3, 12), 0,
)  # fmt: skip


def row(way: str, ratio: float | None, **changes: Any) -> Drafted:
    spread = None if ratio is None else Spread(ratio, ratio - 0.1, ratio + 0.1, 12)
    rates = None if ratio is None else Spread(20 * ratio, 1.0, 1.0, 12)
    failures = () if ratio is not None else ("It broke off.",)
    lowest = None if ratio is None else ratio - 0.2
    cell = Cell("4G", None, way, spread, spread, rates, Spread(20.0, 19.0, 21.0, 12), 0, failures, lowest=lowest)
    figures = (2.04, 6.54, 0.512, 1.34) if ratio is not None else (None,) * 4
    return Drafted(cell, *figures)


def render(facts: dict[str, Any], untrained: list[Drafted], padding: Padding | None = None) -> str:
    return tables.render(
        facts
        | {
            "level": "int8",
            "effort": DraftingEffort(),
            "padding": padding,
            "drafter": "shipped",
            "untrained_drafter": "untrained",
            "limit": LIMIT,
            "rows": [row("the server drafts", 1.2), row("the device drafts", None)],
            "untrained": untrained,
            "traffic": [Traffic("plain streaming", 40, 128, Bytes(1, 2), 1.5, 18.9, 1.0)],
        }
    )


def test_a_row_for_each_way_and_the_limit_beside(facts: dict[str, Any]) -> None:
    text = render(facts, [row("the server drafts", 0.98)])
    assert "12 questions, answers of 32 to 100 tokens, greedy, int8." in text
    assert "| 4G | the server drafts | 20.0 | 1.20 (1.10 to 1.30) | 1.00 | 2.04 | 6.5 | 51 % | 1.3 |" in text
    assert "| 4G | the device drafts | 20.0 | failed |  |  |  |  |  |" in text
    assert "1 answers over 4G failed: It broke off." in text
    assert (
        "| 2.10 | 5.5 | 14.2 | 1.21 | 0.40 | 30 (28 to 33) | 1.30 | 1.30 (1.20 to 1.40) | 1.01 | 1.25 (1.20 to 1.30) |"
        in text
    )
    assert "| plain streaming | 40 | 128 | 1.5 | 18.9 | 1.00 |" in text
    assert "emulated: each forward" not in text


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        ([0.97, 0.98], "leave 0.97 of plain streaming holds."),
        ([0.99, 0.969], "leave 0.97 of plain streaming does not hold."),
        ([None], "No answer arrived."),
    ],
)
def test_useless_drafts_may_cost_three_hundredths(facts: dict[str, Any], ratios: list[float | None], says: str) -> None:
    assert says in render(facts, [row("the server drafts", ratio) for ratio in ratios])


def test_an_emulated_target_is_said(facts: dict[str, Any]) -> None:
    text = render(facts, [row("the server drafts", 1.0)], Padding(50.0, 1.0))
    assert "each forward takes 50 ms, and 1 ms for each row more." in text
