"""Drafts of fixed sizes, as papers measure them: a copied chain, a drafter's chain, a drafter's tree.

State: that of one conversation's drafter. Invariant: it has read the rows of all tokens that the target's cache holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from moa_server.engine.stepper import MemorySource, SessionTensors
from moa_shared.drafting import ConversationDrafter, TextIndex, draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree


class Drafts(Protocol):
    """Makes the drafts of one answer."""

    def draft(self, tokens: Sequence[int], cached: int, room: int) -> DraftTree:
        """Nodes below the newest token.

        Args:
            tokens: of the whole text; the target has read those before position `cached`.
            room: nodes at most.
        """
        ...


NewDrafts = Callable[[SessionTensors], Drafts]
"""Makes the drafts of an answer that begins, over what the target keeps of it."""


class CopiedChain:
    """Prompt look-up: a chain of up to `nodes` tokens that followed the newest ones before."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._text = TextIndex()

    def draft(self, tokens: Sequence[int], cached: int, room: int) -> DraftTree:
        self._text.extend(tokens[len(self._text.tokens) :])
        return DraftTree.chain(self._text.continuation(min(self._nodes, room)))


class DrafterDrafts:
    """What a drafter guesses: a tree of a shape, or a chain of so many nodes; it reads the rows of `source`, if any.

    Args:
        sampling: by which the target chooses.
    """

    def __init__(
        self,
        drafter: ConversationDrafter,
        shape: TreeShape | int,
        tensors: SessionTensors,
        source: MemorySource | None,
        sampling: Sampling,
    ) -> None:
        self._sampling = sampling
        self._drafter = drafter
        self._shape = shape
        self._tensors = tensors
        self._planes = [] if source is None else [Plane.MEMORY, *([Plane.REUSED_STATE] if source.has_states else [])]
        self._read = 0

    def draft(self, tokens: Sequence[int], cached: int, room: int) -> DraftTree:
        self._drafter.extend(tokens[len(self._drafter.tokens) :])
        for plane in self._planes:
            rows = self._tensors.read(plane, self._read, cached)
            if plane is Plane.MEMORY:
                self._drafter.append_memory(self._read, rows)
            else:
                self._drafter.append_reused_state(self._read, rows)
        self._read = cached
        if isinstance(self._shape, int):
            return draft_chain(self._drafter, min(self._shape, room), self._sampling)
        shape = replace(self._shape, nodes=min(self._shape.nodes, room))
        return draft_tree(self._drafter, shape, self._sampling)[0] if room else DraftTree((), ())
