"""Drafters for servers in tests: one that is always right, one that never is, one that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from moa_server.drafting.session_drafter import ROWS_TOGETHER, OwnDrafter
from moa_server.engine.stepper import MemorySource
from moa_server.target import Request, Target
from moa_shared.drafting.base import Rows, TokenIds
from moa_shared.protocol.messages import Plane

from tests.net.server_peer import toy_source


class TargetDrafter:
    """Guesses with the target itself, so that it is always right.

    Args:
        shift: of the logits' columns; other than 0 it is (nearly) never right.
        sharpness: a factor of the logits; 1 is right in sampled text, more in greedy text of nearly random weights.
    """

    def __init__(self, target: Target, shift: int = 0, sharpness: float = 8.0) -> None:
        self.target = target
        self.sharpness = sharpness
        self.shift = shift
        self.tokens: list[int] = []
        self.rows: dict[bool, dict[int, Rows]] = {False: {}, True: {}}  # of memory, and of the state
        self._nodes: list[list[int]] = []  # paths

    @property
    def token_ids(self) -> TokenIds | None:
        return None

    @property
    def next_position(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self._nodes = []

    def crop(self, length: int) -> None:
        del self.tokens[length:]
        for rows in self.rows.values():
            for position in [position for position in rows if position >= length]:
                del rows[position]

    def append_memory(self, start: int, rows: Rows) -> None:
        self.rows[False].update(enumerate(rows, start))

    def append_reused_state(self, start: int, rows: Rows) -> None:
        self.rows[True].update(enumerate(rows, start))

    def begin(self) -> Rows:
        newest = len(self.tokens) - 2  # whose rows exist; memory rows come several at a time
        assert max(self.rows[True]) == newest
        assert newest - ROWS_TOGETHER[Plane.MEMORY] < max(self.rows[False], default=-1) <= newest
        self._nodes = []
        return self._logits([])[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append([*(self._nodes[parent] if parent >= 0 else []), token])
        return np.stack([self._logits(path) for path in self._nodes[-len(tokens) :]])

    def _logits(self, path: Sequence[int]) -> Rows:
        text = [*self.tokens, *path]
        cache = self.target.new_cache()
        output = self.target.forward_all([Request(cache, text, None, [len(text) - 1], None)])[0]
        logits: Rows = np.roll(self.sharpness * output.logits[0], self.shift)
        return logits


class FailingDrafter(TargetDrafter):
    """Fails in its third draft."""

    begun = 0

    def begin(self) -> Rows:
        self.begun += 1
        if self.begun == 3:
            raise RuntimeError("the drafter is on fire")
        return super().begin()


def drafting_source(
    target: Target, kind: type[TargetDrafter] = TargetDrafter, shift: int = 0, sharpness: float = 8.0
) -> MemorySource:
    """A source of memory rows whose drafter is of that kind."""
    return replace(toy_source(target), drafter=OwnDrafter(lambda: kind(target, shift, sharpness), token_bytes=100))
