"""How many bytes a conversation may come to take: what is promised to it, and what an operator plans with.

Pure: reads sizes only, so that a target without weights serves as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from moa_server.drafting.session_drafter import OwnDrafter
from moa_server.engine.stepper import Stepper
from moa_server.memory.row_store import KeptPlane, most_nbytes
from moa_server.verifier import KVCache


class SessionSize:
    """The size of conversations with this target and these drafters.

    Args:
        draft_nodes: the most of one verification, whose rows come on top of the text's.
    """

    def __init__(self, stepper: Stepper, draft_nodes: int) -> None:
        self._stepper = stepper
        self._draft_nodes = draft_nodes

    def most_nbytes(
        self, cache: KVCache, widths: Mapping[KeptPlane, int], tokens: int, drafter: OwnDrafter | None
    ) -> int:
        """The most bytes that a conversation of so many tokens takes, with a draft below the last.

        Args:
            widths: of the rows that are kept for it.
            drafter: what the server drafts with; None: it does not.
        """
        rows = tokens + self._draft_nodes
        nbytes = cache.most_nbytes(rows) + sum(most_nbytes(width, rows) for width in widths.values())
        return nbytes + (drafter.most_nbytes(rows) if drafter is not None else 0)

    def largest(self, tokens: int) -> int:
        """The most bytes that a conversation of so many tokens takes, with the memory rows that take most.

        It shares nothing: with a prefix in common conversations take less.
        """
        stepper, cache = self._stepper, self._stepper.target.new_cache()
        each = [self.most_nbytes(cache, {}, tokens, None)]
        for source in stepper.sources:
            planes, drafter = stepper.widths(source, reused_state=True), source.drafter
            kept = stepper.kept_widths(source, planes, drafts=drafter is not None)
            each.append(self.most_nbytes(cache, kept, tokens, drafter))
        return max(each)
