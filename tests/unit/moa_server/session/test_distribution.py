"""20,000 tokens of the session follow the target's distribution, and a planted wrong rule does not."""

import numpy as np
import pytest
from moa_server.session.verification import StepPlan, Verification
from moa_shared.protocol.messages import AnswerSettings, Ask
from moa_shared.sampling.coupling import process_logits
from moa_shared.sampling.scores import TextBefore, adjusted
from moa_shared.sampling.settings import Sampling
from scipy import stats

from tests.unit.moa_server.session.markov import PROMPT, VOCAB, MarkovModel, new_session, steps

SAMPLES = 20_000
TARGET = MarkovModel.random(1)
DRAFTER = TARGET.blurred(2, 1.0)
PROBABILITIES = np.exp(process_logits(TARGET.table, Sampling()))

PENALISED = Sampling(0.9, seed=13, min_p=0.02, repeat_penalty=1.5, repeat_last_n=1, logit_bias=((2, 0.7), (4, -0.4)))


def chi_square_p(tokens: list[int], sampling: Sampling) -> float:
    """One test over all transitions: the statistics of the rows add up, and so do their degrees of freedom."""
    counts = np.zeros((VOCAB, VOCAB))  # of which token followed which
    np.add.at(counts, (np.array(tokens[:-1]), np.array(tokens[1:])), 1)
    before = TextBefore([], [[token] for token in range(VOCAB)])  # all that a penalty may look back here
    table = adjusted(TARGET.table, [1] * VOCAB, sampling, before)
    expected = np.exp(process_logits(table, sampling).astype(np.float64))
    expected = expected / expected.sum(axis=1, keepdims=True) * counts.sum(axis=1, keepdims=True)
    likely = expected > 0
    assert not counts[~likely].any()
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int((likely.sum(axis=1) - 1).sum())
    return float(stats.chi2.sf(statistic, freedom))


def lenient(plan: StepPlan) -> Verification:
    """The planted error: a first draft is accepted where the target gives it more than a third, whatever was drawn."""
    chosen = TARGET.choose(plan)
    if plan.tree and PROBABILITIES[plan.feed[-1], plan.tree.tokens[0]] > 1 / 3:
        chosen[0] = plan.tree.tokens[0]
    return plan.verify(chosen)


@pytest.mark.parametrize(
    ("sampling", "breadth", "depth", "is_lenient"),
    [
        pytest.param(Sampling(1.0, seed=11), 1, 4, False, marks=pytest.mark.long, id="1.0, chain"),
        pytest.param(Sampling(0.7, top_k=4, seed=12), 2, 3, False, id="0.7, tree"),
        pytest.param(PENALISED, 2, 3, False, marks=pytest.mark.long, id="penalties, tree"),
        pytest.param(Sampling(1.0, seed=11), 1, 3, True, id="a wrong rule"),
    ],
)
def test_committed_tokens_follow_the_targets_distribution(
    sampling: Sampling, breadth: int, depth: int, is_lenient: bool
) -> None:
    session = new_session()
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, AnswerSettings(sampling, max_tokens=SAMPLES)))
    within = sampling.within(len(PROMPT))
    verify = lenient if is_lenient else TARGET.verify
    forwards = sum(1 for _ in steps(session, verify, lambda: DRAFTER.tree(session.tokens, within, breadth, depth)))
    assert forwards < 0.8 * SAMPLES  # drafts were accepted, so that the rule was at work
    chance = chi_square_p(session.tokens[len(PROMPT) :], sampling)
    assert chance < 1e-6 if is_lenient else chance > 0.001
