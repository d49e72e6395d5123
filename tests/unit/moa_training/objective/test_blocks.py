"""Block starts and masks, against what their definition says position by position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_training.objective.blocks import block_starts, build_blocks, own_share, staircase_probability, with_own_choices

from tests.support.properties import examples

LENGTH = 24


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH), min_size=1, max_size=3),
    st.lists(st.integers(2, 15), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_masks_are_what_their_definition_says(
    answers: list[list[bool]], lengths: list[int], stairs: list[bool]
) -> None:
    inside = torch.tensor(answers)
    rows = len(answers)
    blocks = build_blocks(inside, torch.tensor(lengths[:rows]), torch.tensor(stairs[:rows]))
    for row in range(rows):
        start = 0
        for i in range(LENGTH):
            if not answers[row][i] or i % lengths[row] == 0:
                start = i
            assert int(blocks.start[row, i]) == start
            assert bool(blocks.is_start[row, i]) == (start == i)
            for j in range(LENGTH):
                own = j > start or j == i
                assert bool(blocks.memory_visible[row, i, j]) == (j <= start)
                assert bool(blocks.self_visible[row, i, j]) == (j <= i and (own or not stairs[row]))


def test_without_a_bound_an_answer_is_one_block() -> None:
    inside = torch.tensor([[False, False, True, True, True, False, True, True]])
    assert block_starts(inside, None).tolist() == [[0, 1, 1, 1, 1, 5, 5, 5]]


def test_a_row_that_begins_inside_an_answer_starts_at_its_first_token() -> None:
    assert block_starts(torch.ones(1, 5, dtype=torch.bool), None).tolist() == [[0, 0, 0, 0, 0]]


@pytest.mark.parametrize(("step", "probability"), [(0, 1.0), (25, 0.5), (49, 0.02), (50, 0.0), (100, 0.0), (1000, 0.0)])
def test_the_staircase_ends_at_half_time(step: int, probability: float) -> None:
    assert staircase_probability(step, 100) == pytest.approx(probability)
    assert staircase_probability(1, 0) == 0.0


def test_the_drafters_own_choices_replace_half_of_what_it_must_guess() -> None:
    length, every = 4000, 8
    ids, choices = torch.zeros(1, length, dtype=torch.long), torch.arange(1, length + 1)[None]
    inside = (torch.arange(length) >= 100)[None]
    blocks = build_blocks(inside, torch.tensor([every]), torch.tensor([False]))
    own = with_own_choices(ids, choices, blocks, torch.Generator().manual_seed(3))[0]
    replaced = own > 0
    places = torch.arange(length)
    assert own[replaced].equal(places[replaced])  # each by the choice made after the token before it
    given = (places < 100) | (places % every <= 1)  # the prompt, a block's start, and the newest known token
    assert not replaced[given].any()
    assert 0.45 < float(replaced[~given].float().mean()) < 0.55


def test_own_text_comes_gradually() -> None:
    assert [own_share(spent, 0.4) for spent in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.2, 0.4, 0.4]
