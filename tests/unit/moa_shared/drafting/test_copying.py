"""Copies and what they are worth, alone and among the candidates of a tree."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import CandidatePool, CopyGuesser, TreeShape, draft_chain, draft_tree
from moa_shared.sampling.coupling import Sampling
from moa_shared.sampling.scores import log_softmax
from moa_shared.tree.arithmetic import ROOT

from tests.unit.moa_shared.drafting.test_growing import ToyDrafter


def test_a_guess_is_what_followed_and_its_chance_grows_with_the_run() -> None:
    copies = CopyGuesser()
    copies.restart([1, 2, 3, 4, 9, 2, 3])
    assert copies.guess() == (4, copies.log_chance(2))
    assert copies.guess([4]) == (9, copies.log_chance(3))
    assert copies.guess([8]) is None
    chances = [copies.log_chance(size) for size in range(1, 7)]
    assert chances == sorted(chances)


def test_it_learns_how_often_copying_is_right() -> None:
    right, wrong = CopyGuesser(), CopyGuesser()
    for copies in (right, wrong):
        copies.restart([1, 2, 3, 4, 5, 6])
    right.extend([1, 2, 3, 4, 5, 6] * 10)
    wrong.extend([1, 2, 9, 1, 2, 8, 1, 2, 7, 1, 2, 6, 1, 2, 5, 1, 2, 4])
    assert right.log_chance(6) > CopyGuesser().log_chance(6)
    assert wrong.log_chance(2) < CopyGuesser().log_chance(2)


@given(st.integers(0, 200), st.lists(st.integers(0, 4), min_size=2, max_size=30), st.integers(1, 30))
def test_a_merged_tree_is_a_tree_of_the_best(seed: int, text: list[int], nodes: int) -> None:
    copies, toy = CopyGuesser(), ToyDrafter(seed)
    copies.restart(text)
    toy.text = list(text)
    tree, pool, _ = draft_tree(toy, TreeShape(3, 3, nodes), Sampling(), copies)
    plain, _, _ = draft_tree(toy, TreeShape(3, 3, nodes), Sampling())
    assert len(tree) >= len(plain)
    pairs = list(zip(pool.parents, pool.tokens, strict=True))
    assert len(set(pairs)) == len(pairs)
    for index, parent in enumerate(pool.parents):
        assert parent < index
        assert parent == ROOT or pool.scores[index] <= pool.scores[parent] + 1e-9
    guess = copies.guess()
    if guess is not None and nodes >= 20:
        assert tree.child_with(ROOT, guess[0]) is not None


def test_a_copy_that_the_drafter_has_too_gets_the_better_score() -> None:
    copies = CopyGuesser()
    copies.restart([1, 2, 3, 4, 1, 2])
    pool = CandidatePool()
    pool.add(ROOT, [3, 5], [-9.0, -0.1])
    pool.add_copies(copies, 10, math.log(0.02))
    assert pool.tokens[:2] == [3, 5]
    assert pool.scores[0] == copies.log_chance(2)
    assert pool.tokens[2:4] == [4, 1]
    assert pool.parents[2:4] == [0, 2]
    before = list(pool.tokens)
    pool.add_copies(copies, 10, math.log(0.02))
    assert pool.tokens == before


@given(st.integers(0, 200))
def test_a_chain_takes_the_likelier_of_the_drafters_choice_and_the_copy(seed: int) -> None:
    copies, toy = CopyGuesser(), ToyDrafter(seed)
    toy.text = [0, 1, 2, 3, 4, 5, 0, 1, 2]
    copies.restart(toy.text)
    first = draft_chain(toy, 3, Sampling(), copies).tokens[0]
    chances = log_softmax(toy.logits(toy.text))
    assert first == (3 if copies.log_chance(3) > float(chances.max()) else int(chances.argmax()))
