"""A toy target and a toy drafter over the two pure state machines: the whole protocol without models or a network.

The target is a Markov chain: the logits after a token depend on that token alone. The drafter is the same chain with
some error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from moa_client.conversation.conversation import Conversation
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Verdict
from moa_shared.sampling.coupling import draft_candidates, select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

VOCAB = 6
PROMPT = [0, 3, 1]


def decode(tokens: Sequence[int]) -> str:
    return "".join("abcdef"[token] for token in tokens)


def _normal(seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((VOCAB, VOCAB), np.float32)


@dataclass
class MarkovModel:
    """Logits after each token, [vocab, vocab]."""

    table: npt.NDArray[np.float32]

    @classmethod
    def random(cls, seed: int, scale: float = 1.5) -> MarkovModel:
        return cls(np.float32(scale) * _normal(seed))

    def blurred(self, seed: int, error: float) -> MarkovModel:
        return MarkovModel(self.table + np.float32(error) * _normal(seed))

    def choose(self, plan: StepPlan) -> list[int]:
        """The target's choices after the last fed token and after each node."""
        last = [plan.feed[-1], *plan.tree.tokens]
        return select(self.table[last], plan.positions, plan.sampling, plan.text_before)

    def text(self, tokens: Sequence[int], count: int, sampling: Sampling) -> list[int]:
        """What the target alone writes."""
        written = list(tokens)
        for _ in range(count):
            written += select(self.table[written[-1:]], [len(written)], sampling, TextBefore(written, [()]))
        return written[len(tokens) :]

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
            frontier_next = []
            for (node, path), children in zip(frontier, best.tolist(), strict=True):
                for child in children:
                    frontier_next.append((len(tokens), [*path, child]))
                    tokens.append(child)
                    parents.append(node)
            frontier = frontier_next
        return DraftTree(tuple(tokens), tuple(parents))


@dataclass
class ToyServer:
    """A session and the engine's part of a step, done at once."""

    model: MarkovModel
    run_ahead: bool = False
    choose: Callable[[StepPlan], list[int]] | None = None
    limits: SessionLimits = field(default_factory=lambda: SessionLimits(100_000, VOCAB, prefill_chunk=4))

    def __post_init__(self) -> None:
        self.session = Session(self.limits, end_of_text=frozenset({VOCAB}), decode=decode, run_ahead=self.run_ahead)
        self.forwards = 0

    def step(self) -> Verdict | None:
        """One forward, if the session's turn came; the verdict that it gives, if it chooses tokens."""
        plan = self.session.plan_step()
        if plan is None:
            return None
        self.forwards += 1
        if not plan.chooses:
            assert self.session.on_prefilled(plan)
            return self.step()
        verification = plan.verify((self.choose or self.model.choose)(plan))
        assert self.session.on_verified(plan, verification)
        return self.session.verdict(plan, verification, stale=0, step_ms=0.0)


def converse_in_rounds(
    server: ToyServer, drafter: MarkovModel, settings: AnswerSettings, *, breadth: int = 1, depth: int = 3
) -> Conversation:
    """A whole answer in synchronous rounds."""
    conversation = Conversation(VOCAB)
    server.session.on_ask(conversation.ask(PROMPT, settings))
    while True:
        verdict = server.step()
        assert verdict is not None
        if conversation.commit_verdict(verdict).finish is not Finish.UNFINISHED:
            return conversation
        tree = drafter.tree(conversation.tokens, conversation.sampling, breadth, depth)
        server.session.on_draft(conversation.in_flight.propose(tree))


def transition_counts(tokens: Sequence[int]) -> np.ndarray:
    """[vocab, vocab] counts of which token followed which."""
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (np.array(tokens[:-1]), np.array(tokens[1:])), 1)
    return counts
