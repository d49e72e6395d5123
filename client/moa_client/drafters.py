"""The drafters that a client can run, behind one small interface; all of them run on the inference thread.

A drafter is told what is committed and what memory came, and makes trees. `MoaDrafter` reads the server's memory;
`LookupDrafter` copies from the conversation; without a drafter the server answers by plain steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from moa_shared.coupling import Sampling
from moa_shared.drafter import DraftState
from moa_shared.tree import DraftTree

Recipe = Callable[[DraftState, Sampling], DraftTree]


class ClientDrafter(Protocol):
    """What the drafting loop asks of a drafter."""

    @property
    def reads_memory(self) -> bool:
        """Whether the server's memory is of use to it."""
        ...

    def restart(self, tokens: Sequence[int]) -> None:
        """The conversation consists of these tokens now."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens follow."""
        ...

    def remember(self, start: int, rows: torch.Tensor, *, state: bool) -> None:
        """Rows of memory, or of the state that enters the first reused layer."""
        ...

    def draft(self, sampling: Sampling) -> DraftTree:
        """A tree below the newest committed token; empty where there is nothing to guess."""
        ...


class MoaDrafter:
    """A Mixture of Attentions drafter.

    Args:
        new_state: makes an empty state.
        recipe: chain or tree.
        reads_memory: False for a drafter whose memory encoder the server does not have.
    """

    def __init__(self, new_state: Callable[[], DraftState], recipe: Recipe, *, reads_memory: bool) -> None:
        self._new_state = new_state
        self._recipe = recipe
        self._state = new_state()
        self.reads_memory = reads_memory

    def restart(self, tokens: Sequence[int]) -> None:
        common = 0
        for mine, theirs in zip(self._state.tokens, tokens, strict=False):
            if mine != theirs:
                break
            common += 1
        if common:
            self._state.crop(common)
        else:
            self._state = self._new_state()
        self._state.extend(tokens[common:])

    def commit(self, tokens: Sequence[int]) -> None:
        self._state.extend(tokens)

    def remember(self, start: int, rows: torch.Tensor, *, state: bool) -> None:
        if state:
            self._state.append_reused_state(start, rows)
        else:
            self._state.append_memory(start, rows)

    def draft(self, sampling: Sampling) -> DraftTree:
        return self._recipe(self._state, sampling)


class LookupDrafter:
    """Prompt look-up: what followed the last time that the newest tokens stood in the conversation.

    Args:
        length: of the chain.
        longest: tokens that must agree, tried from the longest; 3 to 1 as in the method's first description.
    """

    reads_memory = False

    def __init__(self, length: int, longest: int = 3) -> None:
        self._tokens: list[int] = []
        self._length = length
        self._longest = longest

    def restart(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def remember(self, start: int, rows: torch.Tensor, *, state: bool) -> None:
        """It needs none."""

    def draft(self, sampling: Sampling) -> DraftTree:
        tokens = self._tokens
        for size in range(min(self._longest, len(tokens) - 1), 0, -1):
            newest = tokens[-size:]
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == newest:
                    return DraftTree.chain(tokens[start + size : start + size + self._length])
        return DraftTree((), ())
