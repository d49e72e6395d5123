"""The ways over a link, and what the tables say of rounds of answers."""

from typing import Any

from inline_snapshot import snapshot
from moa_bench.suites.split.tables import ALL, PLAIN, figures_of, link_table, remarks


def answer(seconds: float, **fields: Any) -> dict[str, Any]:
    made = {
        "tokens": 10, "first_ms": 100.0, "seconds": seconds, "gaps_ms": [10.0, 30.0], "forwards": 5, "up": 200,
        "down": 400, "server_cpu_s": 0.05, "own_cpu_s": 0.02, "common": 10, "same": True,
    }  # fmt: skip
    return made | fields


ROUNDS = [
    {
        "link": "4G",
        "answers": {
            PLAIN: [answer(1.0, forwards=10, up=None, down=None), answer(1.0, forwards=10, up=None, down=None)],
            "EAGLE-2: synchronous rounds": [answer(2.0)],
            ALL: [answer(1.25)],
            "another": [answer(0.1, same=False)],
            "broken": [{"failure": "Nothing comes from 127.0.0.1:41234."}],
        },
    }
]


def test_speeds_are_relative_to_plain_streaming_before_and_after() -> None:
    assert figures_of(ROUNDS, ALL).over_plain == [0.8]


def test_an_answer_with_another_text_is_in_no_ratio() -> None:
    assert figures_of(ROUNDS, "another").over_plain == []


def test_a_link_is_a_table() -> None:
    assert link_table(ROUNDS) == snapshot("""\
| method | tokens/s | over plain | worst | first token | tokens a forward | forwards a 100 tokens | gap, ms: median | 95 % | 99 % | up a token | down a token | server's CPU, ms a token | device's |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain streaming | 10.0 | 1 |  | 1 | 1.00 | 100 | 20 | 30 | 30 |  |  | 5.0 | 2.0 |
| EAGLE-2: synchronous rounds | 5.0 | 0.50 (0.50 to 0.50) | 0.50 | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| moa: everything on | 8.0 | 0.80 (0.80 to 0.80) | 0.80 | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| another | 100.0 | another text |  | another text | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| broken | failed |  |  |  |  |  |  |  |  |  |  |  |  |
""")


def test_other_texts_failures_and_losses_are_told() -> None:
    assert remarks(ROUNDS) == snapshot("""\
With answers that are not plain streaming's, left out of ratios: another over 4G.
Failed over 4G: broken: Nothing comes from the link.
Slower than plain streaming with everything on: 4G (0.80).
""")
