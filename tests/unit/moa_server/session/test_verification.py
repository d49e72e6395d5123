"""The draft that waits for the target, the walk along its choices, and what may be left out of a step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session import verification as pending_module
from moa_server.session.verification import FRAME_NODES, NO_DRAFT, PendingDraft, StepPlan, Verification
from moa_shared.errors import ProtocolError, TreeError
from moa_shared.protocol.messages import AnswerSettings, Draft, Finish, FinishRule
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, StreamedTree

from tests.support.counted import TouchedTokens

TEXT = [10, 11, 12, 13]


class Receiver:
    """A pending draft, and the committed tokens that it is held against."""

    def __init__(self, committed: Sequence[int] = TEXT) -> None:
        self.committed = list(committed)
        self.hashes = PrefixHashes(committed)
        self.pending = PendingDraft()

    def add(self, tokens: Sequence[int], parents: Sequence[int] = (), **changes: Any) -> bool:
        draft = Draft(0, 4, PrefixHashes(TEXT).short_at(4), 0, tokens, parents)
        return self.pending.add_frame(self.committed, self.hashes, replace(draft, **changes))

    def commit(self, *tokens: int) -> None:
        self.committed += tokens
        self.hashes.extend(tokens)
        self.pending.on_committed(self.committed)

    @property
    def usable(self) -> DraftTree:
        return self.pending.usable(self.committed)

    @property
    def covers(self) -> bool:
        return self.pending.covers(self.committed)


def test_nodes_stream_in() -> None:
    receiver = Receiver()
    assert receiver.add([1, 2])
    assert receiver.add([3], first_node=2)
    assert receiver.usable == DraftTree.chain([1, 2, 3])


def test_the_committed_tokens_lead_down_the_tree() -> None:
    receiver = Receiver()
    receiver.add([1, 2, 3, 4, 5], [-1, -1, 1, 1, 2])
    receiver.commit(2)
    assert receiver.usable == DraftTree((3, 4, 5), (-1, -1, 0))
    receiver.commit(4)
    assert receiver.covers
    assert len(receiver.usable) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 5},
        {"base": 0},
        {"prefix_hash": 1},
        {"first_node": 3},
        {"epoch": 1, "first_node": 1},
        {"epoch": 0, "base": 3, "prefix_hash": PrefixHashes(TEXT).short_at(3)},  # an older base
    ],
)
def test_stale_frames_change_nothing(changes: dict[str, Any]) -> None:
    receiver = Receiver()
    receiver.add([1, 2])
    assert not receiver.add([7, 8], **changes)
    assert receiver.usable == DraftTree.chain([1, 2])
    assert receiver.pending.take_stale() == 2


@pytest.mark.parametrize(("parents", "error"), [([1, -1], TreeError), ([-2, 0], TreeError), ([-1], ProtocolError)])
def test_parents_that_make_no_tree(parents: list[int], error: type[Exception]) -> None:
    with pytest.raises(error):
        Receiver().add([1, 2], parents)


def test_a_draft_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "MOST_NODES", 4)
    receiver = Receiver()
    assert receiver.add([1, 2, 3])
    assert not receiver.add([4, 5], first_node=3)
    assert receiver.usable == DraftTree.chain([1, 2, 3])


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens = draw(st.lists(st.integers(0, 2), max_size=12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
    return DraftTree(tuple(tokens), tuple(parents))


@given(tree=trees(), continuation=st.lists(st.integers(0, 2), max_size=5), data=st.data())
def test_any_order_of_frames_and_commits_ends_the_same(
    tree: DraftTree, continuation: list[int], data: st.DataObject
) -> None:
    """However a tree is cut into frames, repeated, and interleaved with commits: what is usable depends on neither."""
    receiver = Receiver()
    sent = committed = 0
    receiver.add([])
    while sent < len(tree) or committed < len(continuation):
        if committed < len(continuation) and (sent == len(tree) or data.draw(st.booleans())):
            receiver.commit(continuation[committed])
            committed += 1
        else:
            first = data.draw(st.integers(0, sent))  # from before `sent`: nodes are repeated
            sent = data.draw(st.integers(sent + 1, len(tree)))
            receiver.add(tree.tokens[first:sent], tree.parents[first:sent], first_node=first)
    node: int | None = -1
    for token in continuation:
        node = tree.child_with(node, token) if node is not None else None
    assert receiver.covers == (node is not None)
    whole = StreamedTree(tree.tokens, tree.parents)
    assert receiver.usable == (whole.below(node)[0] if node is not None else DraftTree((), ()))
    most = data.draw(st.integers(0, 5))
    few = DraftTree(receiver.usable.tokens[:most], receiver.usable.parents[:most])
    assert receiver.pending.usable(receiver.committed, most) == few


def test_a_stale_draft_is_dropped_whole_and_a_newer_epoch_replaces_the_draft() -> None:
    receiver = Receiver()
    receiver.add([1, 2], epoch=3)
    assert receiver.add([5], epoch=4)
    tokens, parents = TouchedTokens(1_000_000), TouchedTokens(1_000_000)
    for changes in (
        {"epoch": 3},
        {"epoch": 4, "base": 9},
        {"epoch": 5, "prefix_hash": 1},
        {"epoch": 4, "first_node": 2},
    ):
        assert not receiver.add(tokens, parents, **changes)
        assert receiver.pending.take_stale() == 1_000_000
    assert tokens.touched == parents.touched == 0
    assert receiver.usable == DraftTree.chain([5])
    assert receiver.pending.epoch == 4


def test_of_a_long_draft_the_beginning_is_taken() -> None:
    receiver = Receiver()
    tokens = TouchedTokens(FRAME_NODES + 5)
    assert receiver.add(tokens)
    assert len(receiver.usable) == FRAME_NODES == tokens.touched
    assert receiver.pending.take_stale() == 5
    assert not receiver.add([1], first_node=FRAME_NODES + 5)  # leaves a gap


# ---------------------------------------------------------------- the walk

END_OF_TEXT = 9
TREE = DraftTree((5, 6, 7, 8), (-1, -1, 1, 2))  # 5 alone; 6, 7, 8 in a row


def plan(
    tree: DraftTree = TREE, *, max_tokens: int = 20, answer: tuple[int, ...] = (), needs_draft: bool = False
) -> StepPlan:
    """A step of an answer that begins at position 2, with two tokens in the cache."""
    settings = AnswerSettings(Sampling(), max_tokens=max_tokens)
    rule = FinishRule(settings, 2, 100, frozenset({END_OF_TEXT}), str)
    return StepPlan(0, 2, (4,), tree, True, rule, answer, needs_draft=needs_draft)


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
    assert plan(needs_draft=True).pick(NO_DRAFT) is None
    assert plan(needs_draft=True).pick(some) is not None
