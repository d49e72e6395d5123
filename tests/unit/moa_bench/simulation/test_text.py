"""The oracle of the simulation: right where it was drawn to be, whatever the schedule, and lost after a wrong token."""

from __future__ import annotations

import pytest
from moa_bench.simulation.text import PROMPT, WRONG, ScriptedText, by_chance

AT = len(PROMPT)


def test_the_drafter_follows_the_text_where_it_is_right() -> None:
    text = ScriptedText(10, lambda number: number != 2)
    draft: list[int] = []
    for _ in range(4):
        draft.append(text.draft_on(AT, draft))
    assert draft[:2] == text.tokens[AT : AT + 2]
    assert draft[2:] == [WRONG, WRONG]  # after a wrong token it has left the text
    assert text.draft_on(AT + 3, []) == text.tokens[AT + 3]  # a commit brings it back


def test_the_target_is_never_what_the_drafter_says_where_it_is_wrong() -> None:
    text = ScriptedText(2000, lambda _: False)
    positions = range(AT, AT + 2000)
    assert WRONG not in text.choose(positions)
    assert text.choose(positions) == text.tokens[AT : AT + 2000]
    assert {text.draft_on(position, []) for position in positions} == {WRONG}


def test_beyond_the_text_nothing_is_right() -> None:
    text = ScriptedText(1, lambda _: True)
    assert text.draft_on(len(text.tokens), []) == WRONG


def test_luck_is_of_the_token_and_of_the_seed_alone() -> None:
    lucky = by_chance(0.7, seed=3)
    drawn = [lucky(number) for number in range(2000)]
    assert [lucky(number) for number in reversed(range(2000))] == drawn[::-1]
    assert sum(drawn) / len(drawn) == pytest.approx(0.7, abs=0.05)
    assert drawn != [by_chance(0.7, seed=4)(number) for number in range(2000)]
    assert not any(map(by_chance(0.0, seed=3), range(100)))


def test_an_answer_follows_its_prompt() -> None:
    text = ScriptedText(4, lambda number: number == 0, prompt=(7, 8))
    assert text.tokens[:2] == [7, 8]
    assert text.draft_on(2, []) == text.tokens[2]
    assert text.draft_on(3, []) == WRONG
