"""The draft that waits for the target: streamed nodes of one tree, held against what has been committed meanwhile.

Pure. State: the newest epoch, the tree below `base`, and the node that the committed tokens have reached in it.
Invariant: the tree hangs below a prefix whose hash was checked, and `node` is where the committed tokens lead.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.errors import ProtocolError, TreeError
from moa_shared.prefix_hash import PrefixHashes
from moa_shared.tree import ROOT, DraftTree


class PendingDraft:
    """Draft nodes that have arrived and are not verified yet."""

    def __init__(self) -> None:
        self.epoch = 0
        self.stale_nodes = 0  # since the last call of take_stale()
        self._base = 0
        self._tree = DraftTree((), ())
        self._node: int | None = None  # None: no tree, or the committed tokens left it

    def add(
        self,
        committed: Sequence[int],
        hashes: PrefixHashes,
        *,
        epoch: int,
        base: int,
        prefix_hash: int,
        first_node: int,
        tokens: Sequence[int],
        parents: Sequence[int],
    ) -> bool:
        """Takes in a Draft frame; True if it named a state that holds (even if nothing of it is new).

        A frame of an older epoch, for a base beyond what is committed, with another prefix, or that leaves a gap in
        the numbering is stale: its nodes are counted and dropped. A repeated frame changes nothing.

        Raises:
            TreeError: parents that do not stand before their children.
            ProtocolError: parents that are neither absent nor one for each token.
        """
        if parents and len(parents) != len(tokens):
            raise ProtocolError("one parent for each token of a draft, or none", f"{len(parents)} for {len(tokens)}")
        numbered = list(parents) or [first_node + index - 1 for index in range(len(tokens))]
        for index, parent in enumerate(numbered):
            if not ROOT <= parent < first_node + index:
                raise TreeError(
                    f"Node {first_node + index} of a draft tree has parent {parent}, "
                    f"expected -1 to {first_node + index - 1}."
                )
        if epoch < self.epoch or base > len(committed) or base < 1 or hashes.at(base) != prefix_hash:
            self.stale_nodes += len(tokens)
            return False
        known = len(self._tree) if (epoch, base) == (self.epoch, self._base) and self._node is not None else 0
        if first_node > known:
            self.stale_nodes += len(tokens)
            return False
        if known == 0:
            self._start(epoch, base)
        new = max(0, first_node + len(tokens) - known)
        if new:
            skipped = len(tokens) - new
            self._tree = DraftTree(
                self._tree.tokens + tuple(tokens[skipped:]), self._tree.parents + tuple(numbered[skipped:])
            )
        self._follow(committed)
        if new and self._node is None:
            self.stale_nodes += new
        return True

    def _start(self, epoch: int, base: int) -> None:
        self.epoch = epoch
        self._base = base
        self._tree = DraftTree((), ())
        self._node = ROOT

    def _follow(self, committed: Sequence[int]) -> None:
        """Walks from the root along the committed tokens; leaves the tree where no child holds the next one."""
        node: int | None = ROOT
        for token in committed[self._base :]:
            node = self._tree.child_with(node, token) if node is not None else None
            if node is None:
                break
        self._node = node

    def on_committed(self, committed: Sequence[int]) -> None:
        """The committed tokens have grown."""
        if self._node is not None:
            self._follow(committed)

    def clear(self) -> None:
        """Drops the draft (a new turn, a cancelled answer)."""
        self._tree = DraftTree((), ())
        self._node = None

    @property
    def covers(self) -> bool:
        """Whether a draft, even an empty one, names the newest committed token."""
        return self._node is not None

    def usable(self) -> DraftTree:
        """The nodes below the newest committed token."""
        return self._tree.subtree(self._node) if self._node is not None else DraftTree((), ())

    def take_stale(self) -> int:
        stale, self.stale_nodes = self.stale_nodes, 0
        return stale
