"""20,000 tokens through both state machines follow the target's distribution, and a planted wrong rule does not."""

from dataclasses import replace

import numpy as np
import pytest
from moa_server.session.verification import StepPlan
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.coupling import process_logits
from moa_shared.sampling.scores import TextBefore, adjusted
from moa_shared.sampling.settings import Sampling
from scipy import stats

from tests.unit.moa_server.session.markov import (
    PROMPT,
    VOCAB,
    MarkovModel,
    ToyServer,
    converse_in_rounds,
    transition_counts,
)

SAMPLES = 20_000
TARGET = MarkovModel.random(1)
DRAFTER = TARGET.blurred(2, 1.0)

PENALISED = Sampling(0.9, seed=13, min_p=0.02, repeat_penalty=1.5, repeat_last_n=1, logit_bias=((2, 0.7), (4, -0.4)))


def chi_square_p(tokens: list[int], sampling: Sampling) -> float:
    """One test over all transitions: the statistics of the rows add up, and so do their degrees of freedom."""
    counts = transition_counts(tokens)
    before = TextBefore([], [[token] for token in range(VOCAB)])  # all that a penalty may look back here
    table = adjusted(TARGET.table, [1] * VOCAB, sampling, before)
    expected = np.exp(process_logits(table, sampling).astype(np.float64))
    expected = expected / expected.sum(axis=1, keepdims=True) * counts.sum(axis=1, keepdims=True)
    likely = expected > 0
    assert not counts[~likely].any()
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int((likely.sum(axis=1) - 1).sum())
    return float(stats.chi2.sf(statistic, freedom))


@pytest.mark.parametrize(
    ("sampling", "breadth", "depth"),
    [
        pytest.param(Sampling(1.0, seed=11), 1, 4, marks=pytest.mark.long),
        (Sampling(0.7, top_k=4, seed=12), 2, 3),
        pytest.param(PENALISED, 2, 3, marks=pytest.mark.long),
    ],
    ids=["1.0, chain", "0.7, tree", "penalties, tree"],
)
def test_verified_drafts_follow_the_target(sampling: Sampling, breadth: int, depth: int) -> None:
    server = ToyServer(TARGET)
    conversation = converse_in_rounds(
        server, DRAFTER, AnswerSettings(sampling, max_tokens=SAMPLES), breadth=breadth, depth=depth
    )
    answer = list(conversation.answer)
    assert len(answer) == SAMPLES
    assert server.forwards < 0.8 * SAMPLES  # drafts were accepted, so that the rule was at work
    assert chi_square_p(answer, sampling) > 0.001


def test_a_wrong_rule_fails_the_same_test() -> None:
    """Planted error: the first draft is accepted where the target gives it more than a third, whatever was drawn."""
    sampling = Sampling(1.0, seed=11)
    probabilities = np.exp(process_logits(TARGET.table, Sampling()))

    def lenient(plan: StepPlan) -> list[int]:
        chosen = TARGET.choose(plan)
        if plan.tree and probabilities[plan.feed[-1], plan.tree.tokens[0]] > 1 / 3:
            chosen[0] = plan.tree.tokens[0]
        return chosen

    conversation = converse_in_rounds(
        ToyServer(TARGET, choose=lenient), DRAFTER, AnswerSettings(sampling, max_tokens=SAMPLES)
    )
    assert chi_square_p(list(conversation.answer), sampling) < 1e-6


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(0.7),
        Sampling(1.0),
        Sampling(repeat_penalty=1.3, repeat_last_n=5),
        Sampling(0.8, top_p=0.9, min_p=0.05, presence_penalty=0.5, frequency_penalty=0.02, logit_bias=((1, 1.0),)),
    ],
    ids=["greedy", "0.7", "1.0", "greedy with a penalty", "all"],
)
@pytest.mark.parametrize(("breadth", "depth", "error"), [(1, 4, 0.5), (2, 3, 0.5), (3, 2, 9.0), (1, 1, 0.0)])
def test_the_text_is_the_targets_own(how: Sampling, breadth: int, depth: int, error: float) -> None:
    for seed in range(10):
        sampling = replace(how, seed=seed)
        expected = TARGET.text(PROMPT, 60, sampling.within(len(PROMPT)))
        conversation = converse_in_rounds(
            ToyServer(TARGET),
            TARGET.blurred(seed, error),
            AnswerSettings(sampling, max_tokens=60),
            breadth=breadth,
            depth=depth,
        )
        assert list(conversation.answer) == expected
