"""The walk along the target's choices, and what may be left out of a step."""

import pytest
from moa_server.session.verification import NO_DRAFT, StepPlan, Verification
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

END_OF_TEXT = 9
TREE = DraftTree((5, 6, 7, 8), (-1, -1, 1, 2))  # 5 alone; 6, 7, 8 in a row


def plan(
    tree: DraftTree = TREE, *, max_tokens: int = 20, answer: tuple[int, ...] = (), needs_draft: bool = False
) -> StepPlan:
    """A step of an answer that begins at position 2, with two tokens in the cache."""
    settings = AnswerSettings(Sampling(), max_tokens=max_tokens)
    rule = FinishRule(settings, 2, 100, frozenset({END_OF_TEXT}), str)
    return StepPlan(0, 2, (4,), tree, True, settings, rule, answer, needs_draft=needs_draft)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([1, 0, 0, 0, 0], Verification((), (1,), 0, Finish.UNFINISHED)),
        ([5, 3, 0, 0, 0], Verification((0,), (5, 3), 1, Finish.UNFINISHED)),
        ([6, 0, 7, 8, 2], Verification((1, 2, 3), (6, 7, 8, 2), 3, Finish.UNFINISHED)),
        ([6, 0, END_OF_TEXT, 8, 2], Verification((1,), (6, END_OF_TEXT), 1, Finish.END_OF_TEXT)),
    ],
    ids=["no guess was right", "one, then the bonus", "a whole branch", "the bonus ends the answer"],
)
def test_a_node_is_accepted_if_the_target_chose_it_after_its_parent(chosen: list[int], expected: Verification) -> None:
    assert plan().verify(chosen) == expected


def test_an_answer_is_cut_where_single_steps_would_have_ended_it() -> None:
    """The last token taken is the bonus: its keys and values are not kept, although it was drafted."""
    verification = plan(max_tokens=2).verify([6, 0, 7, 8, 2])
    assert verification == Verification((1,), (6, 7), 2, Finish.MAX_TOKENS)


def test_nodes_may_be_left_out_of_a_step_that_is_worth_a_forward_without_them() -> None:
    some = TREE.pick([1, 2])
    picked = plan().pick(some)
    assert picked is not None
    assert (picked.tree, picked.feed, picked.cached) == (some, (4,), 2)
    assert plan().pick(NO_DRAFT) == plan(NO_DRAFT)


def test_a_step_that_needs_a_draft_is_nothing_without_its_nodes() -> None:
    assert plan(needs_draft=True).pick(NO_DRAFT) is None
    assert plan(needs_draft=True).pick(TREE.pick([0])) is not None
