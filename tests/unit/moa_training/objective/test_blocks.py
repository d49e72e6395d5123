"""Block starts and masks, against what their definition says position by position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_training.objective.blocks import block_starts, build_blocks, staircase_probability

LENGTH = 24


@settings(max_examples=60)
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
