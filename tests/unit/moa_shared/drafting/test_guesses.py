"""Guesses that take no drafter."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.growing import GrowingDraft, GrowthShape
from moa_shared.drafting.guesses import NgramTable, TextGuesser
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.unit.moa_shared.drafting.test_growing import ToyDrafter


def test_a_guess_is_what_followed_and_its_chance_grows_with_the_run() -> None:
    copies = TextGuesser()
    copies.restart([1, 2, 3, 4, 9, 2, 3])
    assert (copies.copied(), copies.copied([4])) == ((4, copies.log_chance(2)), (9, copies.log_chance(3)))
    assert copies.copied([8]) is None
    chances = [copies.log_chance(size) for size in range(1, 7)]
    assert chances == sorted(chances)


def test_it_learns_how_often_copying_is_right() -> None:
    right, wrong = TextGuesser(), TextGuesser()
    for copies in (right, wrong):
        copies.restart([1, 2, 3, 4, 5, 6])
    right.extend([1, 2, 3, 4, 5, 6] * 10)
    wrong.extend([1, 2, 9, 1, 2, 8, 1, 2, 7, 1, 2, 6, 1, 2, 5, 1, 2, 4])
    assert right.log_chance(6) > TextGuesser().log_chance(6)
    assert wrong.log_chance(2) < TextGuesser().log_chance(2)


def by_search(text: list[int], ahead: list[int], longest: int) -> tuple[int, int]:
    newest = [*text, *ahead]
    for size in range(min(longest, len(newest)), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == newest[-size:]:
                return start + size, size
    return 0, 0


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(1, 4),
)
def test_it_finds_the_newest_occurrence_of_the_longest_run(
    pieces: list[list[int]], ahead: list[int], longest: int
) -> None:
    index = TextGuesser(longest=longest)
    index.restart([1, 1])
    index.restart([])
    for piece in pieces:
        index.extend(piece)
    text = [token for piece in pieces for token in piece]
    assert index.tokens == text
    position, size = by_search(text, ahead, longest)
    assert index.matched(ahead) == (position, size)
    assert index.continuation(3, ahead) == (text[position : position + 3] if size else [])
    assert index.matched(ahead, shortest=size + 1) == (0, 0)


Array = npt.NDArray[Any]
CONTEXTS = np.array([[-1, -1, 5], [-1, 4, 5], [3, 4, 5], [-1, -1, 0]], np.int32)
COUNTS = np.array([2, 1, 1, 1], np.uint8)
TOKENS = np.array([1, 2, 3, 4, 9], np.int32)
CHANCES = np.array([102, 51, 51, 255, 1], np.uint8)


@pytest.mark.parametrize(("newest", "after"), [
    ([3, 4, 5], {4: 1.0}),
    ([8, 3, 4, 5], {4: 1.0}),
    ([8, 4, 5], {3: 0.2}),
    ([4], {}),
    ([], {}),
    ([9, 9, 5], {1: 0.4, 2: 0.2}),
    ([0], {9: 1 / 255}),  # token 0 is a token like any other
    ([0, 5], {1: 0.4, 2: 0.2}),
    ([0, 0, 7], {}),
])  # fmt: skip
def test_the_longest_known_context_decides(newest: list[int], after: dict[int, float]) -> None:
    table = NgramTable(CONTEXTS, COUNTS, TOKENS, CHANCES)
    assert (len(table), table.after(newest)) == (4, [(token, math.log(chance)) for token, chance in after.items()])


@pytest.mark.parametrize(("contexts", "counts", "tokens", "chances"), [
    (CONTEXTS[:, :2], COUNTS, TOKENS, CHANCES), (CONTEXTS[:3], COUNTS, TOKENS, CHANCES),
    (CONTEXTS, COUNTS + 1, TOKENS, CHANCES), (CONTEXTS, COUNTS, TOKENS[:-1], CHANCES),
    (CONTEXTS, COUNTS, TOKENS - 2, CHANCES), (CONTEXTS, COUNTS, TOKENS, CHANCES * 0),
    (CONTEXTS + (1 << 22), COUNTS, TOKENS, CHANCES),
])  # fmt: skip
def test_what_is_no_table_is_refused(contexts: Array, counts: Array, tokens: Array, chances: Array) -> None:
    with pytest.raises(ValueError):
        NgramTable(contexts, counts, tokens, chances)


def table(after: dict[tuple[int, ...], dict[int, int]]) -> NgramTable:
    """Tokens with chances in parts of 255, by context."""
    return NgramTable(
        np.array([(-1,) * (3 - len(context)) + context for context in after], np.int32).reshape(-1, 3),
        np.array([len(tokens) for tokens in after.values()], np.uint8),
        np.array([token for tokens in after.values() for token in tokens], np.int32),
        np.array([chance for tokens in after.values() for chance in tokens.values()], np.uint8),
    )


def test_both_are_ranked_together_and_each_token_comes_once() -> None:
    chance = math.exp(TextGuesser().log_chance(2))
    guesser = TextGuesser(table({(2,): {8: 255, 3: 10, 4: 5}}))
    guesser.restart([1, 2, 3, 1, 2])
    assert [token for token, _ in guesser.guesses()] == [8, 3, 4]
    assert math.exp(guesser.guesses()[1][1]) == chance  # the copy's: the better of both
    likelier = TextGuesser(table({(2,): {3: 250}}))
    likelier.restart([1, 2, 3, 1, 2])
    assert likelier.guesses() == [(3, math.log(250 / 255))]


def test_the_table_reads_across_the_end_of_the_text() -> None:
    guesser = TextGuesser(table({(1, 2, 3): {4: 200}, (3,): {5: 100}}))
    guesser.extend([1, 2])
    assert guesser.guesses([3])[0][0] == 4
    guesser.extend([2])
    assert guesser.guesses([3])[0][0] == 5


def test_text_that_is_sure_to_go_on_for_ever_does_not_take_for_ever() -> None:
    guesser = TextGuesser(table({(token,): {(token + 1) % 4: 255, (token + 2) % 4: 255} for token in range(4)}))
    guesser.restart([0])
    growing = GrowingDraft(ToyDrafter(1), GrowthShape(), guesser)
    growing.commit([0])
    assert len(growing.offer(DraftTree((), ()), Sampling()).tokens) == 64
