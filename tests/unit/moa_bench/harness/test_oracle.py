"""The oracle drafter: right as often as asked, wrong where the seed says, in chains and in trees."""

import numpy as np
import pytest
from moa_bench.harness.oracle import SECOND_GUESS, OracleDrafter, Script
from moa_shared.drafting.dynamic_tree import TreeShape, draft_tree
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT

VOCAB = 50
TEXT = tuple((7 * place) % VOCAB for place in range(400))
GREEDY = Sampling()


def oracle(acceptance: float, seed: int = 0) -> OracleDrafter:
    return OracleDrafter(Script(TEXT, acceptance, seed, VOCAB))


def test_it_states_how_often_it_is_right() -> None:
    def stated(script: Script) -> list[float]:
        drafter = OracleDrafter(script)
        drafter.extend(TEXT[:10])
        chances = np.exp(drafter.begin()[0])
        return sorted((chances / chances.sum()).tolist())[-2:]

    assert stated(Script(TEXT, 0.6, 0, VOCAB)) == pytest.approx([0.4 / 49, 0.6])
    assert stated(Script(TEXT, 0.6, 0, VOCAB, SECOND_GUESS)) == pytest.approx([0.2, 0.6])
    assert stated(Script(TEXT, 0.6, 0, VOCAB, is_sure=True)) == pytest.approx([0.0, 1.0])


def test_nothing_right_grows_on_a_wrong_branch() -> None:
    drafter = oracle(1.0)
    drafter.extend(TEXT[:10])
    drafter.begin()
    logits = drafter.expand([TEXT[10], (TEXT[10] + 1) % VOCAB], [-1, -1])
    assert logits.argmax(-1).tolist() == [TEXT[11], (TEXT[11] + 1) % VOCAB]
    assert drafter.expand([TEXT[11], TEXT[11]], [0, 1]).argmax(-1).tolist() == [TEXT[12], (TEXT[12] + 1) % VOCAB]


def test_it_notices_when_the_target_leaves_the_script_and_comes_back_after_a_crop() -> None:
    drafter = oracle(1.0)
    drafter.extend([*TEXT[:10], (TEXT[10] + 3) % VOCAB, TEXT[11]])
    assert drafter.has_left_the_script
    assert int(drafter.begin().argmax()) != TEXT[12]
    drafter.crop(10)
    drafter.extend(TEXT[10:12])
    assert not drafter.has_left_the_script
    assert int(drafter.begin().argmax()) == TEXT[12]


def test_its_trees_are_as_long_as_those_of_the_drafter_that_it_stands_for() -> None:
    """EAGLE-3's trees of 60 nodes bring 6.1 to 6.2 tokens a forward (arXiv 2503.01840, table 1)."""
    text = tuple((7 * place) % VOCAB for place in range(4000))
    drafter = OracleDrafter(Script(text, 0.8, 0, VOCAB, SECOND_GUESS))
    drafter.extend(text[:10])
    forwards = 0
    while drafter.next_position < 3900:
        tree, start = draft_tree(drafter, TreeShape(8, 8, 60), GREEDY), drafter.next_position
        node, right = ROOT, 0
        while (child := tree.child_with(node, text[start + right])) is not None:
            node, right = child, right + 1
        drafter.extend(text[start : start + right + 1])
        forwards += 1
    assert 5.5 < 3890 / forwards < 6.5
