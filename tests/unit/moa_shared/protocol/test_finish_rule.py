from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from moa_shared.protocol.finish_rule import MAX_STOP_STRINGS, AnswerSettings, Finish, FinishRule

LETTERS = "abcdefghij"


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def rule(context: int = 100, start: int = 5, **settings: object) -> FinishRule:
    return FinishRule(AnswerSettings(**settings), start, context, frozenset({9}), decode)  # type: ignore[arg-type]


def test_each_reason_ends_the_answer_at_its_token() -> None:
    assert rule().cut([], [1, 9, 2]) == ([1, 9], Finish.END_OF_TEXT)
    assert rule(ignore_end_of_text=True).cut([], [1, 9, 2]) == ([1, 9, 2], Finish.UNFINISHED)
    assert rule(max_tokens=3).cut([1], [2, 3, 4]) == ([2, 3], Finish.MAX_TOKENS)
    assert rule(stop=("cd",)).cut([1, 2], [3, 4]) == ([3], Finish.STOP)
    assert rule(context=8).cut([1], [2, 3, 4]) == ([2, 3], Finish.CONTEXT)
    assert rule().cut([1], [2]) == ([2], Finish.UNFINISHED)


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
