"""Prompts of mixed lengths: the same for the same seed, however many users there are."""

from __future__ import annotations

import pytest
from moa_bench.users.questions import UsersEffort, length_at, make_questions
from moa_shared.errors import ConfigError

PASSAGE = list(range(700))


def test_lengths_are_spread_on_a_logarithmic_scale() -> None:
    assert [length_at(share, (50, 4000)) for share in (0.0, 0.5, 1.0)] == [50, 447, 4000]
    with pytest.raises(ConfigError, match="Prompts of 60 to 50 tokens do not exist"):
        UsersEffort(prompt_tokens=(60, 50))


def test_fewer_users_ask_what_the_first_of_more_ask() -> None:
    many = make_questions(PASSAGE, (50, 4000), 16, 2, seed=3)
    assert make_questions(PASSAGE, (50, 4000), 4, 2, seed=3) == many[:4]
    assert make_questions(PASSAGE, (50, 4000), 4, 2, seed=4) != many[:4]


def test_every_few_users_have_short_and_long_prompts() -> None:
    for seed in range(5):
        lengths = [len(prompt) for user in make_questions(PASSAGE, (50, 4000), 8, 1, seed) for prompt in user]
        assert min(lengths) < 110
        assert max(lengths) > 1800


def test_no_two_prompts_begin_alike() -> None:
    prompts = [tuple(prompt) for user in make_questions(PASSAGE, (50, 90), 16, 2, seed=0) for prompt in user]
    assert len({prompt[:1] for prompt in prompts}) > 24
