"""One round ahead: chains of one length go one by one, and while the server verifies one the next is drafted.

The device guesses that its whole chain is right, and what the target adds to it. If so, the next chain is ready when
the verdict comes and goes at once; otherwise the verdict drops it, and a new one is drafted. SpecEdge calls this
proactive drafting (arXiv 2505.17052). Pure.
"""

from moa_shared.tree.draft_tree import DraftTree


class RoundAhead:
    """A `DraftRule` for a server that waits for each chain.

    Args:
        nodes: of a chain.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool:
        """Up to two chains, and between them the token that the target adds."""
        return len(draft) < 2 * self._nodes + 1

    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool) -> bool:
        """A whole chain, or what the drafter could make of one, once no sent node is undecided."""
        return unsent >= len(draft) and (flush or len(draft) >= self._nodes)

    def on_sent(self, nodes: int) -> None:
        """Nothing: what is under way is seen in the draft."""
