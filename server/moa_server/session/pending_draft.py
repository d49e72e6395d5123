"""The draft that waits for the target: streamed nodes of one tree, held against what has been committed meanwhile.

Pure. State: the newest (epoch, base), the nodes below it, and the node that the committed tokens have reached; those
numbered before that node are forgotten, so that a draft which is always confirmed may continue for ever.
Invariants: the tree hangs below a prefix whose hash was checked; `reached` committed tokens lead to `node`. A node that
arrives after its token was committed is still followed, so what comes below it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.errors import ProtocolError
from moa_shared.protocol.messages import Draft
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.tree import ROOT, DraftTree, StreamedTree, check_parents

FRAME_NODES = 4096  # accepted of one frame: 4 ms of the event loop, two minutes of a device's standalone text
MOST_NODES = 65_536  # of one draft in flight: bounds what a hostile client makes us hold (10 MB)

NO_DRAFT = DraftTree((), ())


class PendingDraft:
    """Draft nodes that have arrived and are not verified yet."""

    def __init__(self) -> None:
        self.epoch = 0
        self.stale_nodes = 0  # since the last call of take_stale()
        self.clear()

    def clear(self) -> None:
        """Drops the draft (a new turn, a cancelled answer); the epoch stays."""
        self._begin(0)

    def _begin(self, base: int) -> None:
        self._base = base  # 0: no draft
        self._tree = StreamedTree()
        self._node = ROOT
        self._reached = base
        self._below: tuple[int, DraftTree] | None = None  # how many were asked for, and the tree of them, if known

    def add(self, committed: Sequence[int], hashes: PrefixHashes, draft: Draft) -> bool:
        """Adds a Draft frame; True if it named a state that holds (even if nothing of it is new).

        A frame of an older epoch or base, for a base beyond what is committed, with another prefix, or that leaves a
        gap in the numbering is stale: its nodes are counted and dropped, and so are those beyond the first FRAME_NODES
        of a frame. A repeated frame changes nothing. A frame that continues the held draft may leave out the hash
        (0), which its first frame gave.
        """
        tokens, parents, first_node, base = draft.tokens, draft.parents, draft.first_node, draft.base
        if parents and len(parents) != len(tokens):
            raise ProtocolError("one parent for each token of a draft, or none", f"{len(parents)} for {len(tokens)}")
        same = (draft.epoch, base) == (self.epoch, self._base)
        holds = (draft.epoch, base) >= (self.epoch, self._base) and 1 <= base <= len(committed)
        continues = same and not draft.prefix_hash and first_node > 0
        if not holds or not (continues or hashes.short_at(base) == draft.prefix_hash):
            self.stale_nodes += len(tokens)
            return False
        known = self._tree.end if same else 0
        forgotten = self._tree.first if same else 0
        if first_node > known or first_node + len(tokens) - forgotten > MOST_NODES:
            self.stale_nodes += len(tokens)
            return False
        count = min(len(tokens), FRAME_NODES)
        numbered = _number_parents(first_node, count, parents)
        if not same:
            self.epoch = draft.epoch
            self._begin(base)
        self.stale_nodes += len(tokens) - count
        self._below = None
        for index in range(known - first_node, count):
            self._tree.append(tokens[index], numbered[index])
        new = range(known, self._tree.end)
        self.on_committed(committed)
        late = len(committed) - base  # nodes of this depth and less are where tokens are committed already
        self.stale_nodes += sum(not self.covers(committed) or self._tree.depth(node) <= late for node in new)
        return True

    def on_committed(self, committed: Sequence[int]) -> None:
        """Follows newly committed tokens down the tree as far as they lead."""
        while self._base and self._reached < len(committed):
            child = self._tree.child_with(self._node, committed[self._reached])
            if child is None:
                break
            self._node, self._below = child, None
            self._reached += 1
        self._tree.forget(self._node)

    def covers(self, committed: Sequence[int]) -> bool:
        """Whether a draft, even an empty one, names the newest committed token."""
        return self._base > 0 and self._reached == len(committed)

    def usable(self, committed: Sequence[int], most: int = MOST_NODES) -> DraftTree:
        """The first `most` nodes below the newest committed token."""
        if not self.covers(committed):
            return NO_DRAFT
        if self._below is None or self._below[0] != most:
            self._below = most, self._tree.below(self._node, most)[0]
        return self._below[1]

    def take_stale(self) -> int:
        """Nodes that came too late since the last call."""
        stale, self.stale_nodes = self.stale_nodes, 0
        return stale


def _number_parents(first_node: int, count: int, parents: Sequence[int]) -> list[int]:
    """The parents of a frame's first `count` nodes."""
    numbered = list(parents[:count]) or [first_node + index - 1 for index in range(count)]
    check_parents(numbered, first_node)
    return numbered
