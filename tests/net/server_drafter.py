"""Drafters for servers in tests: one that is always right, one that never is, one that fails."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from moa_server.drafting.draft_decision import MemorySource, OwnDrafter
from moa_server.drafting.session_drafter import ROWS_TOGETHER
from moa_server.verifier import Request, Target
from moa_shared.drafting.drafts import Rows
from moa_shared.protocol.messages import Plane

from tests.net.server_peer import toy_source
from tests.support.counted import RecordingDrafter


class TargetDrafter(RecordingDrafter):
    """Guesses with the target itself, so that it is always right.

    `shift`: of the logits' columns; other than 0 it is (nearly) never right. `sharpness`: a factor of the logits; 1 is
    right in sampled text, more in greedy text of nearly random weights.
    """

    def __init__(self, target: Target, shift: int = 0, sharpness: float = 8.0) -> None:
        super().__init__()
        self.target = target
        self.sharpness = sharpness
        self.shift = shift
        self._nodes: list[list[int]] = []  # paths

    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        self._nodes = []

    def begin(self) -> Rows:
        newest = len(self.tokens) - 2  # whose rows exist; memory rows come several at a time
        assert max(self.states) == newest
        assert newest - ROWS_TOGETHER[Plane.MEMORY] < max(self.memory, default=-1) <= newest
        self._nodes = []
        return self._logits([])[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append([*(self._nodes[parent] if parent >= 0 else []), token])
        return np.stack([self._logits(path) for path in self._nodes[-len(tokens) :]])

    def _logits(self, path: Sequence[int]) -> Rows:
        text = [*self.tokens, *path]
        cache = self.target.new_cache()
        output = self.target.forward_all([Request(cache, text, None, [len(text) - 1])])[0]
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
