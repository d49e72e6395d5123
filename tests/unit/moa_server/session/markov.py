"""A toy target and a toy drafter over the two pure state machines: the whole protocol without models or a network.

The target is a Markov chain: the logits after a token depend on that token alone. The drafter is the same chain with
some error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.sampling.coupling import draft_candidates, select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

VOCAB = 6
PROMPT = [0, 3, 1]


def decode(tokens: Sequence[int]) -> str:
    return "".join("abcdef"[token] for token in tokens)


def new_session(limits: SessionLimits | None = None, ends: frozenset[int] = frozenset({VOCAB})) -> Session:
    limits = limits or SessionLimits(100_000, VOCAB, prefill_chunk=4)
    return Session(limits, end_of_text=ends, decode=decode, run_ahead=True)


def steps(
    session: Session,
    verify: Callable[[StepPlan], Verification],
    draft: Callable[[], DraftTree] | None = None,
    *,
    most_read: int | None = None,
    acknowledges: bool = True,
) -> Iterator[tuple[StepPlan, Verification]]:
    """Steps a session as the engine does, until it has nothing to do. `draft`: nodes in place of those that arrived."""
    while (plan := session.plan_step(most_read)) is not None:
        if not plan.chooses:
            assert session.on_prefilled(plan)
            continue
        if draft is not None and (picked := plan.pick(draft())) is not None:
            plan = picked
        verification = verify(plan)
        assert session.on_verified(plan, verification)
        if acknowledges:
            session.on_ack(len(session.tokens))
        yield plan, verification


@dataclass
class MarkovModel:
    """Logits after each token, [vocab, vocab]."""

    table: npt.NDArray[np.float32]

    @classmethod
    def random(cls, seed: int) -> MarkovModel:
        return cls(np.float32(1.5) * np.random.default_rng(seed).standard_normal((VOCAB, VOCAB), np.float32))

    def blurred(self, seed: int, error: float) -> MarkovModel:
        noise = np.random.default_rng(seed).standard_normal((VOCAB, VOCAB), np.float32)
        return MarkovModel(self.table + np.float32(error) * noise)

    def choose(self, plan: StepPlan) -> list[int]:
        """The target's choices after the last fed token and after each node."""
        return select(self._logits(plan), plan.positions, plan.sampling, plan.text_before)

    def verify(self, plan: StepPlan) -> Verification:
        return plan.choose_tokens(self._logits(plan), None)

    def _logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        return self.table[[plan.feed[-1], *plan.tree.tokens]]

    def tree(self, text: Sequence[int], sampling: Sampling, breadth: int, depth: int) -> DraftTree:
        """The `breadth` best continuations of each node after a text, down to `depth`; breadth 1 is a chain."""
        tokens: list[int] = []
        parents: list[int] = []
        frontier: list[tuple[int, list[int]]] = [(ROOT, [])]
        for level in range(depth):
            logits = self.table[[(path or text)[-1] for _, path in frontier]]
            before = TextBefore(text, [path for _, path in frontier])
            positions = [len(text) + level] * len(frontier)
            _, best = draft_candidates(logits, positions, sampling, breadth, before=before)
            below = []
            for (node, path), children in zip(frontier, best.tolist(), strict=True):
                for child in children:
                    below.append((len(tokens), [*path, child]))
                    tokens.append(child)
                    parents.append(node)
            frontier = below
        return DraftTree(tuple(tokens), tuple(parents))
