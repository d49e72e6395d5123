"""The arithmetic of the network experiment, with answers that the test makes up."""

from __future__ import annotations

from moa_bench.network.emulated import LINKS, Link
from moa_bench.network.network import Cell, Plan, Way, _ask, _cell, _Pair
from moa_bench.network.oracle import Script
from moa_bench.report.answers import AnswerClient, TimedAnswer
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings


def answer(seconds: float, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> TimedAnswer:
    return TimedAnswer(tokens, tuple(seconds * (place + 1) / len(tokens) for place in range(len(tokens))))


def test_a_ratio_is_to_the_plain_answers_around_it() -> None:
    pairs = [
        _Pair(answer(1.0), (answer(2.0), answer(2.0))),  # a quiet machine
        _Pair(answer(4.0), (answer(6.0), answer(12.0))),  # one that gets slower
    ]
    cell = _cell("4G", 0.8, "rounds of 4", pairs)
    assert cell.ratio is not None
    assert cell.ratio.count == 2
    assert (cell.ratio.low, cell.ratio.high) == (2.0, 2.0)
    assert cell.other_texts == 0


def test_another_text_is_counted() -> None:
    pairs = [
        _Pair(answer(1.0, (1, 2, 9, 9)), (answer(1.0), answer(1.0))),
        _Pair(answer(1.0), (answer(1.0), answer(1.0))),
    ]
    cell: Cell = _cell("4G", 0.8, "rounds of 4", pairs)
    assert cell.other_texts == 1


def test_a_plan_knows_how_many_answers_it_takes() -> None:
    def connect(link: Link, address: str, script: Script | None) -> AnswerClient:
        raise AssertionError("nothing is asked here")

    plan = Plan(LINKS[:2], [Way("a", connect), Way("b", connect)], (0.0, 0.5, 0.9), [[1], [2]], 8, 50)
    assert plan.answers == 2 * 2 * (2 + 3 * 2)


def test_a_way_that_fails_leaves_the_others_alone() -> None:
    gone = UnavailableError("It is gone.", hint="")
    cell = _cell("4G", 0.8, "a", [_Pair(gone, (answer(1.0), answer(1.0))), _Pair(answer(1.0), (answer(2.0),) * 2)])
    assert cell.ratio is not None
    assert (cell.ratio.median, cell.ratio.count, cell.failures) == (2.0, 1, ("It is gone.",))
    cell = _cell("4G", 0.8, "a", [_Pair(gone, (answer(1.0), answer(1.0)))])
    assert cell.ratio is None


def test_a_client_is_closed_and_its_failure_told() -> None:
    class Failing:
        closed = False

        def ask(self, *_: object) -> TimedAnswer:
            raise UnavailableError("It broke off.", hint="")

        def close(self) -> None:
            self.closed = True

    client = Failing()
    assert str(_ask(lambda: client, [1], AnswerSettings())) == "It broke off."
    assert client.closed

    def refused() -> Failing:
        raise UnavailableError("Nobody is there.", hint="")

    assert str(_ask(refused, [1], AnswerSettings())) == "Nobody is there."
