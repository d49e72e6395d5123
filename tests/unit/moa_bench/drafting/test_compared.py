"""What answers took, as it is added up for a way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from moa_bench.drafting.compared import CountedClient, Spent, drafted_row
from moa_bench.network.network import Cell
from moa_bench.report.answers import PlainClient, TimedAnswer
from moa_bench.report.spread import Spread
from moa_shared.protocol.finish_rule import AnswerSettings

CELL = Cell("4G", None, "a way", None, None, None, Spread(10.0, 10.0, 10.0, 1), 0)


def test_the_first_verification_of_an_answer_never_has_a_draft() -> None:
    row = drafted_row(CELL, [Spent(11, 6, 20, 4, 0.022), Spent(21, 6, 30, 10, 0.042)])
    assert row.tokens_a_verification == 3.0  # ten and twenty tokens of five forwards each
    assert row.nodes_a_verification == 5.0
    assert row.server_guessed == pytest.approx(14 / 32, abs=1e-4)
    assert row.cpu_ms_a_token == 2.0


def test_answers_that_did_not_arrive_say_nothing() -> None:
    row = drafted_row(CELL, [])
    assert (row.tokens_a_verification, row.nodes_a_verification) == (None, None)
    assert (row.server_guessed, row.cpu_ms_a_token) == (None, None)
    assert drafted_row(CELL, [Spent(9, 3, None, 6, 0.001)]).nodes_a_verification is None
    assert drafted_row(CELL, [Spent(1, 1, 0, 0, 0.001)]).tokens_a_verification is None


class Streamed:
    """Gets five tokens in three responses, which takes some of this process's time."""

    closed = False

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, watch: Callable[[int], object]) -> TimedAnswer:
        sum(range(300_000))
        watch(5)
        return TimedAnswer((1, 2, 3, 4, 5), (0.1, 0.2, 0.2, 0.2, 0.3))

    def close(self) -> None:
        self.closed = True


def test_a_call_without_a_device_counts_responses_and_its_own_time() -> None:
    noted, watched, inner = list[Spent](), list[int](), Streamed()
    client = CountedClient(cast(PlainClient, inner), noted.append)
    assert client.ask([1], AnswerSettings(), watched.append).tokens == (1, 2, 3, 4, 5)
    client.close()
    assert inner.closed
    assert watched == [5]
    (spent,) = noted
    assert (spent.tokens, spent.verifications, spent.nodes, spent.server_guessed) == (5, 3, None, 2)
    assert spent.cpu_seconds > 0
