from __future__ import annotations

from moa_server.drafting.growth_rule import DraftRecord
from moa_shared.tree.draft_tree import DraftTree

CHAIN = DraftTree.chain([1, 2, 3])


def test_right_guesses_raise_the_chances_and_wrong_ones_lower_them() -> None:
    good, bad = DraftRecord(), DraftRecord()
    for _ in range(50):
        good.learn(CHAIN, [1, 2, 3, 4])
        bad.learn(CHAIN, [9])
    assert min(good.survival(CHAIN)) > 0.8
    assert max(bad.survival(CHAIN)) < 0.1


def test_steps_without_a_right_guess_are_counted_in_a_row() -> None:
    record = DraftRecord()
    for taken in ([9], [9], [9]):
        record.learn(CHAIN, taken)
    assert record.fruitless_steps == 3
    record.learn(CHAIN, [1])
    assert record.fruitless_steps == 0


def test_guesses_without_the_prompts_memory_are_not_counted() -> None:
    record = DraftRecord()
    before = record.acceptance.level.mean
    for _ in range(20):
        record.learn(DraftTree.chain([5]), [7], blind=True)
    assert record.acceptance.level.mean == before
