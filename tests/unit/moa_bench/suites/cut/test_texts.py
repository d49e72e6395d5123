from __future__ import annotations

import time
from pathlib import Path

from moa_bench.harness.links import RunningLink
from moa_bench.suites.cut.texts.measure import answer_settings, cutting
from moa_bench.suites.cut.texts.tables import render


def test_answers_are_greedy_and_sampled_in_turn_with_their_own_seeds() -> None:
    settings = [answer_settings(number, 20) for number in range(4)]
    assert [each.sampling.greedy for each in settings] == [True, False, True, False]
    assert [each.sampling.seed for each in settings] == [0, 1, 2, 3]
    assert {each.max_tokens for each in settings} == {20}


class CountedLink(RunningLink):
    """A link that counts what is done to it."""

    def cut(self, seconds: float) -> None:
        STRUCK.append(seconds)

    def reset(self) -> None:
        STRUCK.append(0.0)


STRUCK: list[float] = []


def test_a_link_is_struck_until_the_block_ends_and_loopback_never() -> None:
    STRUCK.clear()
    with cutting(CountedLink("a:1", Path("control"))) as struck:
        while not STRUCK:
            time.sleep(0.01)
    done = len(STRUCK)
    assert struck.total() == done > 0
    with cutting(CountedLink("a:1", None)) as struck:
        pass
    assert not struck
    assert len(STRUCK) == done


def test_the_table_counts_what_differs() -> None:
    names = ("level", "link", "drafter", "answers", "tokens", "standalone", "cuts", "resets")
    result: dict[str, object] = dict.fromkeys(names, 7)
    assert "| 7 | 2 |" in render(result | {"differences": [1, 2]})
