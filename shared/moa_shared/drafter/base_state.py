"""What the state of every kind of drafter has: the committed tokens, and the nodes of the draft under way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.draft_nodes import DraftNodes
from moa_shared.errors import InternalError

Rows = npt.NDArray[np.float32]


class BaseState:
    """One conversation of one drafter.

    Args:
        token_ids: the target's token of each column of the logits; None: the same.
    """

    def __init__(self, token_ids: npt.NDArray[np.int64] | None) -> None:
        self.token_ids = token_ids
        self.tokens: list[int] = []
        self._nodes = DraftNodes()
        self._drafting = False

    @property
    def most_depth(self) -> int | None:
        """The levels that come with the first one, and the most that a draft has; None: a level at a time, no limit."""
        return None

    @property
    def next_position(self) -> int:
        """Position of the first token to guess."""
        return len(self.tokens)

    def catch_up(self, most: int) -> bool:
        """As of `ConversationDrafter`; there is no need to for kinds that begin fast, however long the text is."""
        return True

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Does nothing: of all kinds only Mixture of Attentions reuses layers of the target."""

    def _check_begin(self) -> None:
        """Raises InternalError: there is no token yet."""
        if not self.tokens:
            raise InternalError("A draft was begun before there was any token.")

    def _check_expand(self, tokens: Sequence[int]) -> None:
        """Raises InternalError: no draft is under way, or no nodes."""
        if not self._drafting:
            raise InternalError("Draft nodes were added before a draft was begun.")
        if not tokens:
            raise InternalError("A draft was to grow by no nodes.")
