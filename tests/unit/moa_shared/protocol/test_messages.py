"""When an answer ends, and the guard against loops."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.protocol.messages import (
    LONGEST_RUN,
    LOOK_EVERY,
    LOOP_TOKENS,
    MAX_STOP_STRINGS,
    AnswerSettings,
    Finish,
    FinishRule,
)

LETTERS = "abcdefghij"


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def rule(context: int = 100, start: int = 5, **settings: object) -> FinishRule:
    return FinishRule(AnswerSettings(**settings), start, context, frozenset({9}), decode)  # type: ignore[arg-type]


@pytest.mark.parametrize(("made", "answer", "new", "taken", "finish"), [
    (rule(), [], [1, 9, 2], 2, Finish.END_OF_TEXT),
    (rule(ignore_end_of_text=True), [], [1, 9, 2], 3, Finish.UNFINISHED),
    (rule(max_tokens=3), [1], [2, 3, 4], 2, Finish.MAX_TOKENS), (rule(stop=("cd",)), [1, 2], [3, 4], 1, Finish.STOP),
    (rule(context=8), [1], [2, 3, 4], 2, Finish.CONTEXT), (rule(), [1], [2], 1, Finish.UNFINISHED),
])  # fmt: skip
def test_each_reason_ends_the_answer_at_its_token(
    made: FinishRule, answer: list[int], new: list[int], taken: int, finish: Finish
) -> None:
    assert made.cut(answer, new) == (new[:taken], finish)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(0, 12),
    st.lists(st.sampled_from(["ab", "cde", "jj"]), max_size=MAX_STOP_STRINGS),
    st.data(),
)
def test_paths_end_where_single_steps_would(tokens: list[int], most: int, stop: list[str], data: st.DataObject) -> None:
    """However the tokens are cut into verdicts, the answer is the same."""
    finish_rule = rule(max_tokens=most, stop=tuple(stop))
    singly: list[int] = []
    finish = Finish.UNFINISHED
    for token in tokens:
        taken, finish = finish_rule.cut(singly, [token])
        singly += taken
        if finish is not Finish.UNFINISHED:
            break
    grouped: list[int] = []
    rest = tokens
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        taken, last = finish_rule.cut(grouped, rest[:size])
        grouped += taken
        if last is not Finish.UNFINISHED:
            assert last is finish
            break
        rest = rest[size:]
    assert grouped == singly


GUARDED = FinishRule(AnswerSettings(loop_guard=True), 3, 10_000, frozenset(), lambda _: "")


def words(count: int) -> list[int]:
    """Text without order."""
    return random.Random(count).choices(range(1000), k=count)


def told(tokens: Sequence[int]) -> tuple[int, Finish]:
    """How many of these tokens the answer has, and why it ends."""
    taken, finish = GUARDED.cut([], tokens)
    return len(taken), finish


@pytest.mark.parametrize("run", [1, 2, 7, 59, 71, LONGEST_RUN])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_a_run_that_is_said_again_and_again_ends_the_answer(run: int, before: int) -> None:
    length, finish = told([*range(2000, 2000 + before), *(words(run) * 2 * LOOP_TOKENS)])
    assert finish is Finish.LOOP
    assert before + LOOP_TOKENS <= length < before + LOOP_TOKENS + LOOK_EVERY


@pytest.mark.parametrize("text", [
    words(3000),
    [7, 8] * 200,  # one word 200 times
    ([5] * 20 + [6]) * 20,  # a grid of dots
    words(12) * 30,  # a sentence 30 times
    [token for row in range(300) for token in (10, 11, 100 + row, 12, 13, 14)],  # rows of a table, numbered
    [token for number in range(1, 1000) for token in (number, 0)],  # counting
    words(LONGEST_RUN + 1) * 20,  # longer than what is looked for
    [*([7] * 500), 8, *([7] * 500)],
], ids=["text", "word", "grid", "sentence", "table", "counting", "long run", "interrupted"])  # fmt: skip
def test_what_repeats_a_little_or_with_a_difference_goes_on(text: list[int]) -> None:
    assert told(text) == (len(text), Finish.UNFINISHED)


def test_an_answer_is_cut_at_the_same_token_however_it_arrives() -> None:
    text = [*words(77), *(words(61) * 20)]
    length, finish = told(text)
    assert finish is Finish.LOOP
    for seed in range(20):
        chance, answer, rest = random.Random(seed), list[int](), list(text)
        finish = Finish.UNFINISHED
        while rest and finish is Finish.UNFINISHED:
            size = chance.randint(1, 70)
            window = answer[-GUARDED.settings.decisive_tokens :]
            taken, finish = GUARDED.cut(window, rest[:size], len(answer) - len(window))
            answer, rest = [*answer, *taken], rest[size:]
        assert (len(answer), finish) == (length, Finish.LOOP)
        assert GUARDED.finish_of(answer) is Finish.LOOP
        assert GUARDED.finish_of(answer[:-1]) is Finish.UNFINISHED
