from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session import verification as pending_module
from moa_server.session.verification import FRAME_NODES, PendingDraft
from moa_shared.errors import ProtocolError, TreeError
from moa_shared.protocol.messages import Draft
from moa_shared.protocol.prefix_hash import PrefixHashes
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


def test_a_second_child_is_followed_when_it_comes() -> None:
    receiver = Receiver()
    receiver.add([1])
    receiver.commit(2)
    receiver.add([2, 5], [-1, 1], first_node=1)
    assert receiver.usable == DraftTree.chain([5])


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


def test_a_newer_epoch_replaces_the_draft_and_an_older_one_does_not() -> None:
    receiver = Receiver()
    receiver.add([1, 2], epoch=3)
    assert receiver.add([5], epoch=4)
    assert not receiver.add([6], epoch=3)
    assert receiver.usable == DraftTree.chain([5])
    assert receiver.pending.epoch == 4


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


@pytest.mark.parametrize("changes", [{"epoch": -1}, {"base": 9}, {"prefix_hash": 1}, {"first_node": 1}])
def test_a_stale_draft_is_dropped_whole(changes: dict[str, Any]) -> None:
    receiver = Receiver()
    tokens, parents = TouchedTokens(1_000_000), TouchedTokens(1_000_000)
    assert not receiver.add(tokens, parents, **changes)
    assert receiver.pending.take_stale() == 1_000_000
    assert tokens.touched == parents.touched == 0


def test_of_a_long_draft_the_beginning_is_taken() -> None:
    receiver = Receiver()
    tokens = TouchedTokens(FRAME_NODES + 5)
    assert receiver.add(tokens)
    assert len(receiver.usable) == FRAME_NODES == tokens.touched
    assert receiver.pending.take_stale() == 5
    assert not receiver.add([1], first_node=FRAME_NODES + 5)  # leaves a gap
