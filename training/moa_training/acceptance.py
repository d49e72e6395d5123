"""Acceptance of a drafter on questions, as the verifier would have it.

The target's own greedy text is written once; then every verification of it is replayed: the drafter sees the tokens
and the memory rows that the client would hold, and what of its guesses follows the text is accepted. With greedy text
this is the real verification, since a verdict is a function of the text alone. State: one `DraftState` a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from moa_shared.coupling import Sampling
from moa_shared.drafter import Checkpoint, DraftDecoder, DraftState, MemoryEncoder
from moa_shared.drafting import draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.tree import DraftTree, longest_path

from moa_training.teacher import Teacher

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Shape:
    """How drafts are made: a chain of `nodes` where `tree` is None."""

    nodes: int
    tree: TreeShape | None = None

    @property
    def name(self) -> str:
        return f"chain of {self.nodes}" if self.tree is None else f"tree of {self.nodes}"


@dataclass(slots=True)
class Acceptance:
    """Counts over verifications.

    Attributes:
        accepted: verifications by number of accepted drafts.
        forwards, tokens: of the target; tokens committed by them.
    """

    accepted: list[int] = field(default_factory=list)

    def add(self, count: int) -> None:
        self.accepted += [0] * (count + 1 - len(self.accepted))
        self.accepted[count] += 1

    def merge(self, other: Acceptance) -> None:
        for count, times in enumerate(other.accepted):
            self.accepted += [0] * (count + 1 - len(self.accepted))
            self.accepted[count] += times

    @property
    def forwards(self) -> int:
        return sum(self.accepted)

    @property
    def length(self) -> float:
        """Mean acceptance length: accepted drafts and the bonus token, per target forward."""
        drafts = sum(count * times for count, times in enumerate(self.accepted))
        return drafts / self.forwards + 1 if self.forwards else 0.0

    @property
    def by_position(self) -> list[float]:
        """Share of accepted guesses at each depth, among those whose parents were accepted."""
        reached = [sum(self.accepted[depth:]) for depth in range(len(self.accepted))]
        return [after / before for before, after in pairwise(reached) if before]


class Subject:
    """A drafter under test, with the target that it drafts for."""

    def __init__(self, checkpoint: Checkpoint, teacher: Teacher, dtype: torch.dtype) -> None:
        self.teacher = teacher
        self.encoder: MemoryEncoder = checkpoint.encoder(dtype)
        self.decoder: DraftDecoder = checkpoint.decoder(
            dtype,
            teacher.embeddings,
            teacher.head,
            teacher.reused,
            teacher.final_norm if teacher.reused_layers else None,
        )

    @torch.inference_mode()
    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[Shape]) -> list[Acceptance]:
        """Acceptance of each shape over one answer (whose first token the prefill gives)."""
        ids = [*prompt, *answer]
        batch = torch.tensor([ids])
        target = self.teacher.run(batch, torch.arange(len(ids))[None], None)
        memory = self.encoder.encode(target.kv[0])
        state = None if target.state is None else target.state[0]
        return [self._replay(ids, len(prompt), memory, state, shape) for shape in shapes]

    def _replay(
        self, ids: Sequence[int], prompt: int, memory: torch.Tensor, state: torch.Tensor | None, shape: Shape
    ) -> Acceptance:
        drafter = DraftState(self.decoder)
        counts = Acceptance()
        known = 0
        newest = prompt  # position of the newest committed token; the prefill chose it
        while newest + 1 < len(ids):
            drafter.extend(ids[len(drafter.tokens) : newest + 1])
            drafter.append_memory(known, memory[known:newest])
            if state is not None:
                drafter.append_reused_state(known, state[known:newest])
            known = newest
            tree = self._draft(drafter, shape, len(ids) - 1 - newest)
            path, _ = longest_path(tree, ids[newest + 1], _choices(tree, ids, newest))
            counts.add(len(path))
            newest += len(path) + 1
        return counts

    @staticmethod
    def _draft(drafter: DraftState, shape: Shape, room: int) -> DraftTree:
        if shape.tree is not None:
            return draft_tree(drafter, shape.tree, GREEDY)[0]
        return draft_chain(drafter, min(shape.nodes, room), GREEDY)


def _choices(tree: DraftTree, ids: Sequence[int], newest: int) -> list[int]:
    """The text's token after each node; meaningful along the text, which is all that a walk follows."""
    return [ids[place] if (place := newest + depth + 1) < len(ids) else -1 for depth in tree.depths]
