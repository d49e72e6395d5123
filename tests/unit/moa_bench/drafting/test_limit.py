"""E / (c_v + k c_d), with answers that the test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from inline_snapshot import snapshot
from moa_bench.drafting.effort import DraftingEffort
from moa_bench.drafting.limit import Answered, answer_locally, limit_of
from moa_bench.drafting.local_server import LocalAnswer, LocalServer, Step
from moa_shared.errors import DataError
from moa_shared.protocol.finish_rule import AnswerSettings

PLAIN = Step(1, 0, 10.0, 0.0)


def answer(*steps: Step, reading_ms: float = 20.0) -> LocalAnswer:
    return LocalAnswer(tuple(range(1 + sum(step.tokens for step in steps))), reading_ms, steps)


def answered(*drafted: Step, plain_ms: float = 10.0) -> Answered:
    tokens = sum(step.tokens for step in drafted)
    plain = answer(*[Step(1, 0, plain_ms, 0.0)] * tokens)
    return Answered([1], answer(*drafted), (plain, plain))


def test_tokens_over_the_cost_of_verifying_and_drafting() -> None:
    limit = limit_of([answered(Step(3, 5, 12.0, 6.0), Step(1, 3, 11.0, 4.0))])
    assert (limit.tokens_a_verification, limit.nodes, limit.plain_ms) == (2.0, 4.0, 10.0)
    assert (limit.verification_cost, limit.drafting_cost) == (1.15, 0.5)
    assert limit.ratio == pytest.approx(2.0 / 1.65, abs=1e-4)
    assert limit.steps_ratio.median == pytest.approx(limit.ratio, abs=1e-4)  # one question: the same by another way
    assert limit.whole_ratio.median == pytest.approx((20 + 40) / (20 + 33), abs=1e-4)
    assert limit.first_drafting_ms.median == 6.0
    assert limit.other_texts == 0


def test_each_question_is_compared_with_its_own_plain_answers() -> None:
    quiet = answered(Step(2, 2, 10.0, 0.0))
    slow = Answered([2], answer(Step(2, 2, 40.0, 0.0)), (answer(PLAIN, PLAIN), answer(*[Step(1, 0, 70.0, 0.0)] * 2)))
    limit = limit_of([quiet, slow])
    assert (limit.lowest, limit.steps_ratio.high, limit.steps_ratio.count) == (2.0, 2.0, 2)


def test_another_text_is_counted() -> None:
    other = LocalAnswer((9, 9), 20.0, (PLAIN,))
    assert limit_of([Answered([1], other, (answer(PLAIN), answer(PLAIN)))]).other_texts == 1


class Server:
    """Answers a prompt with as many tokens as its first one says."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int, bool]] = []

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, *, drafts: bool) -> LocalAnswer:
        assert settings.max_tokens is not None
        self.asked.append((list(prompt), settings.max_tokens, drafts))
        return answer(*[PLAIN] * (min(prompt[0], settings.max_tokens) - 1))


EFFORT = DraftingEffort(questions=2, answer_tokens=8, shortest_answer=4, longest_prompt=3)


def test_long_prompts_and_short_answers_are_left_out() -> None:
    server, done = Server(), list[int]()
    prompts = [[9, 1, 1, 1], [2], [5], [20], [6]]
    found = answer_locally(cast(LocalServer, server), prompts, EFFORT, done.append)
    assert [each.prompt for each in found] == [[5], [20]]
    assert done == [1, 1]
    assert server.asked == [
        ([2], 4, True),  # to warm up
        ([2], 8, False),
        ([5], 8, False), ([5], 8, True), ([5], 8, False),
        ([20], 8, False), ([20], 8, True), ([20], 8, False),
    ]  # fmt: skip


def test_without_a_question_nothing_is_measured() -> None:
    with pytest.raises(DataError) as raised:
        answer_locally(cast(LocalServer, Server()), [[3], [9, 9, 9, 9]], EFFORT)
    assert str(raised.value) == snapshot(
        "No question has at most 3 tokens and an answer of at least 4. Name others with --questions."
    )
