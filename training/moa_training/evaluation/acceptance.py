"""Acceptance of a drafter on questions, as the verifier would have it.

The target's own greedy text is written once; then every verification of it is replayed: the drafter sees the tokens
and the memory rows that the client would hold, and what of its guesses follows the text is accepted. With greedy text
this is the real verification, since a verdict depends only on the text. State: one drafter's state per replay.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
from moa_shared.drafter import BaselineState, Checkpoint, DraftState, Weights
from moa_shared.drafting import CHAIN, GrowingDraft, TextGuesser, TextIndex, barred_after, draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.sampling.coupling import Sampling
from moa_shared.tree.draft_tree import DraftTree, longest_path

from moa_training.teacher.target_reader import TargetReader

GREEDY = Sampling()

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """How drafts are made: a chain of `nodes` where `tree` is None."""

    nodes: int
    tree: TreeShape | None = None
    merges_copies: bool = False  # trees also hold what the conversation suggests

    @property
    def name(self) -> str:
        copies = " and copies" if self.merges_copies else ""
        return f"chain of {self.nodes}" if self.tree is None else f"tree of {self.nodes}{copies}"


@dataclass(slots=True)
class Acceptance:
    """Counts over verifications.

    Attributes:
        accepted: verifications by number of accepted drafts.
        draft_seconds: spent on drafts, all together.
    """

    accepted: list[int] = field(default_factory=list)
    draft_seconds: float = field(default=0.0, compare=False)

    def add(self, count: int) -> None:
        self.accepted += [0] * (count + 1 - len(self.accepted))
        self.accepted[count] += 1

    def merge(self, other: Acceptance) -> None:
        self.draft_seconds += other.draft_seconds
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
    def draft_ms(self) -> float:
        """Mean time of a draft, reading what was committed since the last one included."""
        return 1e3 * self.draft_seconds / self.forwards if self.forwards else 0.0

    @property
    def by_position(self) -> list[float]:
        """Share of accepted guesses at each depth, among those whose parents were accepted."""
        reached = [sum(self.accepted[depth:]) for depth in range(len(self.accepted))]
        return [after / before for before, after in pairwise(reached) if before]


@dataclass(frozen=True, slots=True)
class Run:
    """What a drafter wrote without the server.

    Args:
        log_chances: its own, of each token.
        right: how many of the first tokens are the target's.
    """

    log_chances: tuple[float, ...]
    right: int


class Subject(Protocol):
    """What is under test, with the target that it drafts for."""

    reader: TargetReader

    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[Shape]) -> list[Acceptance]:
        """Acceptance of each shape over one answer (whose first token the prefill gives)."""
        ...

    def write(self, known: Sequence[int], length: int, *, memory: bool = True) -> list[int]:
        """Greedy text after tokens that the server has verified, as a client writes it; all but the newest of them
        with their memory, or none.
        """
        ...


class DrafterSubject:
    """A checkpoint of any kind.

    Args:
        target: the parts of the target that the drafter takes over.
        weights: of both of its halves: "int8", "int4" or "float32".
        guarded: its standalone text repeats no run of tokens, as in the client (`barred_after`).
    """

    def __init__(
        self, checkpoint: Checkpoint, reader: TargetReader, target: Weights, weights: str, *, guarded: bool = True
    ) -> None:
        self.reader = reader
        self._guarded = guarded
        self._reads_last_hidden = checkpoint.config.reads_last_hidden
        self._rows = checkpoint.rows(weights) if checkpoint.config.memory_width else None
        self._new_state = checkpoint.states(target, weights)

    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[Shape]) -> list[Acceptance]:
        ids = [*prompt, *answer]
        memory, state = self._read(ids)
        return [self._replay(ids, len(prompt), memory, state, shape) for shape in shapes]

    def write(self, known: Sequence[int], length: int, *, memory: bool = True) -> list[int]:
        drafter = self._new_state()
        draft = GrowingDraft(drafter, CHAIN)
        draft.commit(known)
        if memory:
            rows, state = self._read(known[:-1])
            drafter.append_memory(0, rows)
            if state is not None:
                drafter.append_reused_state(0, state)
        written: list[int] = []
        for _ in range(length):
            barred = barred_after(written) if self._guarded else ()
            written.append(draft.next_token(DraftTree.chain(written), GREEDY, barred)[0])
        return written

    def runs(self, prompt: Sequence[int], answer: Sequence[int], cuts: Sequence[int], length: int) -> list[Run]:
        """What it writes after each cut, if the server is lost there.

        Args:
            cuts: tokens of the answer before each, ascending, at least 1.
            length: tokens written after a cut, at most as many as the answer has there.
        """
        ids = [*prompt, *answer]
        memory, state = self._read(ids)
        drafter = self._new_state()
        draft = GrowingDraft(drafter, CHAIN)
        known, runs = 0, []
        for cut in cuts:
            newest = len(prompt) + cut - 1
            draft.forget()
            draft.commit(ids[len(drafter.tokens) : newest + 1])
            drafter.append_memory(known, memory[known:newest])
            if state is not None:
                drafter.append_reused_state(known, state[known:newest])
            known = newest
            runs.append(self._run(draft, ids[newest + 1 : newest + 1 + length]))
        return runs

    def _run(self, draft: GrowingDraft, expected: Sequence[int]) -> Run:
        written: list[int] = []
        log_chances: list[float] = []
        for _ in expected:
            barred = barred_after(written) if self._guarded else ()
            token, log_chance = draft.next_token(DraftTree.chain(written), GREEDY, barred)
            written.append(token)
            log_chances.append(log_chance)
        pairs = enumerate(zip(written, expected, strict=True))
        right = next((place for place, (mine, theirs) in pairs if mine != theirs), len(expected))
        return Run(tuple(log_chances), right)

    def _read(self, ids: Sequence[int]) -> tuple[Rows, Rows | None]:
        """Memory rows of a text, and the state that enters the first reused layer."""
        read = self.reader.read(ids)
        source = read.last_hidden if self._reads_last_hidden else read.kv
        return np.empty((len(ids), 0), np.float32) if self._rows is None else self._rows(source), read.state

    def _replay(self, ids: Sequence[int], prompt: int, memory: Rows, state: Rows | None, shape: Shape) -> Acceptance:
        drafter = self._new_state()
        guesser = TextGuesser() if shape.merges_copies else None
        counts = Acceptance()
        known = 0
        newest = prompt  # position of the newest committed token; the prefill chose it
        while newest + 1 < len(ids):
            new = ids[len(drafter.tokens) : newest + 1]
            drafter.extend(new)
            if guesser is not None:
                guesser.extend(new)
            drafter.append_memory(known, memory[known:newest])
            if state is not None:
                drafter.append_reused_state(known, state[known:newest])
            known = newest
            begun = time.perf_counter()
            tree = _draft(drafter, shape, len(ids) - 1 - newest, guesser)
            counts.draft_seconds += time.perf_counter() - begun
            newest += _verify(tree, ids, newest, counts)
        return counts


class LookupSubject:
    """Prompt look-up: a chain copied from the conversation, whatever the shape."""

    def __init__(self, reader: TargetReader, longest: int = 3) -> None:
        self.reader = reader
        self._longest = longest  # tokens that must agree: as the client has it

    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[Shape]) -> list[Acceptance]:
        ids = [*prompt, *answer]
        return [self._replay(ids, len(prompt), shape) for shape in shapes]

    def write(self, known: Sequence[int], length: int, *, memory: bool = True) -> list[int]:
        """Ends where there is nothing to copy; it reads no memory."""
        text = TextIndex(self._longest)
        text.restart(known)
        return list(text.continuation(length))

    def _replay(self, ids: Sequence[int], prompt: int, shape: Shape) -> Acceptance:
        text, counts = TextIndex(self._longest), Acceptance()
        text.restart(ids[: prompt + 1])
        newest = prompt
        while newest + 1 < len(ids):
            tokens = text.continuation(min(shape.nodes, len(ids) - 1 - newest))
            moved = _verify(DraftTree.chain(tokens), ids, newest, counts)
            text.extend(ids[newest + 1 : newest + 1 + moved])
            newest += moved
        return counts


def _draft(drafter: DraftState | BaselineState, shape: Shape, room: int, guesser: TextGuesser | None) -> DraftTree:
    if shape.tree is not None:
        return draft_tree(drafter, shape.tree, GREEDY, guesser)[0]
    return draft_chain(drafter, min(shape.nodes, room), GREEDY)


def _verify(tree: DraftTree, ids: Sequence[int], newest: int, counts: Acceptance) -> int:
    """Counts what of a draft follows the text; the tokens committed."""
    path, _ = longest_path(tree, ids[newest + 1], _choices(tree, ids, newest))
    counts.add(len(path))
    return len(path) + 1


def _choices(tree: DraftTree, ids: Sequence[int], newest: int) -> list[int]:
    """The text's token after each node; meaningful along the text, which is all that a walk follows."""
    return [ids[place] if (place := newest + depth + 1) < len(ids) else -1 for depth in tree.depths]
