"""What the tables of client and server say of rounds of answers."""

from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.report.spread import Spread
from moa_bench.suites.split.figures import ALL, PLAIN, figures_of, over
from moa_bench.suites.split.methods import methods_of
from moa_bench.suites.split.tables import EAGLE, link_table, remarks


def answer(seconds: float, **fields: Any) -> dict[str, Any]:
    made = {
        "tokens": 10, "first_ms": 100.0, "seconds": seconds, "gaps_ms": [10.0, 30.0], "forwards": 5, "up": 200,
        "down": 400, "joules": None, "server_cpu_s": 0.05, "own_cpu_s": 0.02, "common": 10, "same": True,
    }  # fmt: skip
    return made | fields


ROUNDS = [
    {
        "link": "4G",
        "answers": {
            PLAIN: [answer(1.0, forwards=10, up=None, down=None), answer(1.0, forwards=10, up=None, down=None)],
            EAGLE: [answer(2.0)],
            ALL: [answer(1.25)],
            "another": [answer(0.1, same=False)],
            "broken": [{"failure": "Nothing comes from 127.0.0.1:41234."}],
            "broken too": [{"failure": "Nothing comes from 127.0.0.1:41235."}],
        },
    }
]


def test_speeds_are_relative_to_plain_streaming_before_and_after() -> None:
    assert figures_of(ROUNDS, ALL).over_plain == [0.8]
    assert over(ROUNDS, ALL, EAGLE) == Spread(1.6, 1.6, 1.6, 1)


def test_an_answer_with_another_text_is_in_no_ratio() -> None:
    assert figures_of(ROUNDS, "another").over_plain == []
    assert over(ROUNDS, "another", EAGLE) is None


def test_a_link_is_a_table() -> None:
    assert link_table(ROUNDS) == snapshot("""\
| method | tokens/s | over plain | worst | over EAGLE-2's rounds | first token | tokens a forward | forwards a 100 tokens | gap, ms: median | 95 % | 99 % | up a token | down a token | server's CPU, ms a token | device's | joules a token |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain streaming | 10.0 | 1 |  |  | 1 | 1.00 | 100 | 20 | 30 | 30 |  |  | 5.0 | 2.0 |  |
| EAGLE-2: synchronous rounds | 5.0 | 0.50 (0.50 to 0.50) | 0.50 |  | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |  |
| moa: everything on | 8.0 | 0.80 (0.80 to 0.80) | 0.80 | 1.60 | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |  |
| another | 100.0 | another text |  |  | another text | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |  |
| broken | failed |  |  |  |  |  |  |  |  |  |  |  |  |  |  |
| broken too | failed |  |  |  |  |  |  |  |  |  |  |  |  |  |  |
""")


def test_other_texts_failures_and_losses_are_told() -> None:
    assert remarks(ROUNDS) == snapshot("""\
With answers that are not plain streaming's, left out of ratios: another over 4G.
Failed over 4G: broken, broken too: Nothing comes from the link.
Slower than plain streaming with everything on: 4G (0.80).
""")


@pytest.mark.parametrize("names", [["A"], ["A", "B"]])
def test_each_drafter_drafts_in_both_ways(names: list[str]) -> None:
    methods = methods_of(names)
    assert [each.name for each in methods][:2] == [PLAIN, "co-located: the server drafts"]
    assert len(methods) == 3 + 2 * len(names)
    assert {each.drafter for each in methods} == set(names)
    assert not any(each.mode is not None and each.mode.server_runs_ahead for each in methods if "round" in each.name)
