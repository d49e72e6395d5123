"""What the drafter of one session guesses, reads and learns."""

import random
import time
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting import session_drafter
from moa_server.drafting.draft_decision import GrowthRule, OwnDrafter, Rows
from moa_server.drafting.forward_cost import CostLine, RowShares
from moa_shared.drafting.estimates import TRIAL_TOKENS
from moa_shared.drafting.guesses import NgramTable
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.support.counted import RecordingDrafter

VOCAB = 512


class CountingDrafter(RecordingDrafter):
    """Says that the number after the newest one comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._paths: list[int] = []

    def begin(self) -> Rows:
        self.steps += 1
        self._paths = []
        return self._after(self.tokens[-1])[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        self.steps += 1
        self._paths += tokens
        return np.stack([self._after(token) for token in tokens])

    def _after(self, token: int) -> Rows:
        logits = np.zeros(VOCAB, np.float32)
        logits[(token + 1) % VOCAB] = 8.43  # a chance of 0.9
        return logits


class Bench:
    """A session's drafter over a target that has read some tokens."""

    def __init__(
        self, tokens: Sequence[int], record: session_drafter.DrafterRecord | None = None, kind: OwnDrafter | None = None
    ) -> None:
        self.kind = kind = kind or OwnDrafter(self.make, 100)
        self.record = record or session_drafter.DrafterRecord(2.0)
        self.session = session_drafter.SessionDrafter(kind, self.record, [Plane.MEMORY, Plane.REUSED_STATE])
        self.tokens = list(tokens)
        self.session.tell(0, tokens)

    def make(self) -> CountingDrafter:
        self.drafter = CountingDrafter()
        return self.drafter

    def commit(self, *tokens: int) -> None:
        self.session.tell(len(self.tokens), tokens)
        self.tokens += tokens

    def guess(self, *, rate: float = 0.08, most_nodes: int = 8, step_ms: float = 2.0) -> session_drafter.Guess:
        rule = GrowthRule(rate, CostLine(10.0, 10.0, 0.1, RowShares.straight(1.0)), 0, step_ms, 0.5, most_nodes)

        def read(plane: Plane, start: int, stop: int) -> Rows:
            return np.zeros((stop - start, 4), np.float32)

        cached, room = len(self.tokens) - 1, session_drafter.ReadingRoom()
        return self.session.guess(DraftTree((), ()), 0.0, Sampling(), rule, read, cached, room)


def test_it_drafts_as_deep_as_pays() -> None:
    bench = Bench([1, 2, 3])
    guess = bench.guess()
    assert (guess.tree, guess.own) == (DraftTree.chain([4, 5, 6, 7, 8, 9, 10, 11]), 8)
    assert (guess.steps, guess.reaches[0]) == ((0, 1, 2, 3, 4, 5, 6, 7), 1.0)
    dear = Bench([1, 2, 3]).guess(rate=0.17)
    assert 0 < dear.own < 8


@given(st.integers(0, 500), st.floats(0.001, 0.3), st.integers(1, 12))
def test_whatever_several_sources_say_the_draft_is_a_tree(seed: int, rate: float, most_nodes: int) -> None:
    """A step may think better of a node that was known before, and then of those below it."""
    chance = random.Random(seed)
    contexts = [(-1, -1, token) for token in range(12)]
    usual = NgramTable(
        np.array(contexts, np.int32),
        np.full(len(contexts), 2, np.uint8),
        np.array([chance.randrange(12) + 12 * place for _ in contexts for place in (0, 1)], np.int32) % 14,
        np.array([chance.randint(1, 255) for _ in range(2 * len(contexts))], np.uint8),
    )
    bench = Bench([chance.randrange(12) for _ in range(20)], kind=OwnDrafter(CountingDrafter, 100, usual))
    for _ in range(4):
        guess = bench.guess(rate=rate, most_nodes=most_nodes)
        assert guess.own == len(guess.tree) == len(guess.steps) <= most_nodes
        text = [chance.randrange(12) for _ in range(chance.randint(1, 3))]
        taken = [guess.tree.tokens[0], *text] if len(guess.tree) and chance.random() < 0.5 else text
        bench.session.learn_guess(guess, taken)
        bench.commit(*taken)


def test_after_a_long_question_it_begins_again_with_the_newest_rows() -> None:
    bench = Bench([1, 2, 3, 4, 5, 6])
    bench.guess()
    first = bench.drafter
    bench.commit(*range(100, 300))
    bench.guess()
    assert bench.drafter is not first
    assert bench.drafter.tokens == bench.tokens
    assert bench.drafter.states == list(range(205 - session_drafter.PROMPT_ROWS[Plane.REUSED_STATE], 205))


def test_what_all_sessions_showed_is_where_a_new_one_begins() -> None:
    first = Bench([1, 2, 3])
    for token in [11, 17, 5, 13, 8, 2, 16, 4, 19, 7] * 20:
        first.session.learn_guess(first.guess(rate=0.05), [token])
        first.commit(token)
    trusting, wary = Bench([1, 2, 3]), Bench([1, 2, 3], first.record)
    assert trusting.guess(rate=0.1).own > 4
    assert wary.guess(rate=0.1).own < 2


def familiar_text(length: int) -> list[int]:
    """Text in which a token often, but not always, has the successor that it had before."""
    draw, text = random.Random(1), [1]
    while len(text) < length:
        text.append((7 * text[-1] + 3) % 40 if draw.random() < 0.4 else draw.randrange(40))
    return text


def test_a_drafter_of_another_model_is_dropped_and_asked_no_more() -> None:
    text = familiar_text(500)
    bench = Bench(text[:3])
    trial = bench.kind.trial
    for token in text[3:]:
        bench.guess(rate=0.05)
        if trial.is_dropped:
            break
        bench.commit(token)
    assert trial.is_dropped
    assert trial.tokens == TRIAL_TOKENS
    assert len(bench.tokens) < 2 * TRIAL_TOKENS  # it was asked although it was never right
    steps = bench.drafter.steps
    bench.commit(400, 401, 402, 400, 401)
    assert bench.guess(rate=0.05).tree.tokens[:1] == (402,)  # a copy
    assert bench.drafter.steps == steps


class BlockDrafter(CountingDrafter):
    """Counts on for five tokens in one step."""

    most_depth = 5

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        self.steps -= 1
        return super().expand(tokens, parents)


def block_bench(tokens: Sequence[int] = (1, 2, 3)) -> Bench:
    made: list[BlockDrafter] = []

    def make() -> BlockDrafter:
        made.append(BlockDrafter())
        return made[-1]

    bench = Bench(
        tokens, session_drafter.DrafterRecord(2.0, 5), kind=OwnDrafter(make, 100, reads_all_rows=True, block_levels=5)
    )
    bench.drafter = made[-1]
    return bench


def test_a_block_is_one_step_and_what_it_finds_is_learnt_as_a_whole() -> None:
    """A step as dear as a plain one pays where it finds more than one token, and no longer where it finds none."""
    bench = block_bench()
    first = bench.record.found.of_step(0)
    assert first > 1
    for number in range(12):
        guess = bench.guess(rate=0.1, step_ms=10.0)
        newest = bench.tokens[-1]
        assert (guess.tree.tokens, bench.drafter.steps) == (tuple(range(newest + 1, newest + 6)), number + 1)
        assert not bench.session._draft.tree._ranked  # idle sessions hold no logits
        taken = range(newest + 1, newest + 7)
        bench.session.learn_guess(guess, taken)
        bench.commit(*taken)
    assert first < bench.record.found.of_step(0) <= 5
    for token in range(100, 180):
        steps = bench.drafter.steps
        bench.session.learn_guess(bench.guess(rate=0.1, step_ms=10.0), [token, token + 300])
        bench.commit(token, token + 300)
    assert bench.drafter.steps == steps


def test_a_drafter_that_knows_only_rows_reads_all_of_them_some_before_each_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And only copies while it is behind; what that takes is no measure of its steps."""
    monkeypatch.setattr(time, "perf_counter", count(step=1e-4).__next__)  # whatever is timed takes 0.1 ms
    prompt = [*range(4, 204), 400, 401, 402, 400, 401]
    bench = block_bench(prompt)
    record = bench.record
    before = record.step_ms.mean, record.follow_ms.mean
    for forward, copied, token in ((1, (402,), 500), (2, (), 450), (3, (), 300)):
        guess = bench.guess()
        assert (guess.tree.tokens[:1], guess.reaches) == (copied, ())
        assert bench.drafter.memory == list(range(forward * session_drafter.ROWS_A_FORWARD))
        bench.session.learn_guess(guess, [token])
        bench.commit(token)
    assert not bench.drafter.steps
    assert (bench.guess().tree.tokens[:2], bench.drafter.memory) == ((301, 302), list(range(len(bench.tokens) - 1)))
    assert (record.step_ms.mean, record.follow_ms.mean) == before
    bench.commit(301)
    bench.guess()
    assert record.step_ms.mean < before[0]
