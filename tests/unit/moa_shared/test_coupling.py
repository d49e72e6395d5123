"""The coupling rule: exact for the target's distribution, the same on both ends, keyed by (seed, position)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_shared.coupling import Sampling, draft_scores, gumbel_noise, process_logits, select
from moa_shared.errors import ConfigError
from moa_shared.tree import DraftTree, longest_path
from scipy import stats

VOCAB = 12
SAMPLES = 20_000
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5, -3.0])
DRAFT_LOGITS = LOGITS + torch.tensor([0.5, -0.5] * 6)


def chi_square_p(chosen: np.ndarray, expected: np.ndarray) -> float:
    kept = expected > 0
    counts = np.bincount(chosen, minlength=VOCAB)
    if counts[~kept].any():
        return 0.0
    exact = expected[kept].astype(np.float64)
    return float(stats.chisquare(counts[kept], exact / exact.sum() * len(chosen)).pvalue)


def speculative_samples(sampling: Sampling, verify_with: Sampling) -> np.ndarray:
    """The first token of 20,000 verified drafts: drafted with one rule, verified with (perhaps) another one."""
    chosen = []
    for position in range(SAMPLES):
        drafted = int(draft_scores(DRAFT_LOGITS[None], [position], sampling).argmax())
        tree = DraftTree.chain([drafted])
        root, after = select(LOGITS.expand(2, -1), [position, position + 1], verify_with)
        path, bonus = longest_path(tree, root, [after])
        chosen.append(tree.tokens[path[0]] if path else bonus)
    return np.array(chosen)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0, seed=3), Sampling(0.7, seed=4), Sampling(1.0, top_k=4, seed=5), Sampling(1.0, top_p=0.8, seed=6)],
    ids=str,
)
def test_samples_follow_the_processed_distribution(sampling: Sampling) -> None:
    chosen = speculative_samples(sampling, sampling)
    expected = process_logits(LOGITS, sampling).exp().numpy()
    assert chi_square_p(chosen, expected) > 0.001


def test_a_wrong_rule_fails_the_same_test() -> None:
    """Planted error: drafts accepted whatever the target chose, so that the drafter's distribution shows through."""
    sampling = Sampling(1.0, seed=3)
    chosen = np.array([int(draft_scores(DRAFT_LOGITS[None], [t], sampling).argmax()) for t in range(SAMPLES)])
    assert chi_square_p(chosen, process_logits(LOGITS, sampling).exp().numpy()) < 1e-6


def test_positions_are_independent_of_each_other() -> None:
    sampling = Sampling(1.0, seed=8)
    chosen = np.array([select(LOGITS[None], [t], sampling)[0] for t in range(SAMPLES)])
    table = np.zeros((3, 3))
    np.add.at(table, (np.minimum(chosen[:-1], 2), np.minimum(chosen[1:], 2)), 1)
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_the_drafter_makes_the_targets_choice_when_it_agrees() -> None:
    sampling = Sampling(0.9, top_p=0.95, seed=1)
    target = torch.randn(200, 500, generator=torch.Generator().manual_seed(0)) * 3
    positions = list(range(200))
    drafted = draft_scores(target, positions, sampling).argmax(-1).tolist()
    assert drafted == select(target, positions, sampling)
    near = draft_scores(target + 0.1 * torch.randn_like(target), positions, sampling).argmax(-1).tolist()
    assert np.mean(np.array(near) == np.array(drafted)) > 0.8


def test_a_reduced_vocabulary_uses_the_noise_of_the_targets_ids() -> None:
    sampling = Sampling(1.0, seed=2)
    ids = torch.tensor([7, 2, 9])
    full = torch.full((1, 12), -torch.inf)
    full[0, ids] = LOGITS[ids]
    reduced = draft_scores(LOGITS[ids][None], [4], sampling, ids)
    assert int(ids[reduced.argmax()]) == select(full, [4], sampling)[0]


def by_the_rule(logits: torch.Tensor, positions: list[int], sampling: Sampling) -> list[int]:
    """The rule as it is written down: everything sorted, normalised, and the argmax taken."""
    scores = process_logits(logits, sampling)
    if sampling.greedy:
        return [int(token) for token in scores.argmax(-1)]
    noise = np.stack([gumbel_noise(sampling.seed, position, scores.shape[-1]) for position in positions])
    return [int(token) for token in (scores + torch.tensor(noise)).argmax(-1)]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([1, 2, 30, 500, 4000]),
    st.sampled_from([0.0, 1e-6, 0.3, 0.8, 1.5, 90.0]),
    st.sampled_from([0, 1, 2, 20, 300, 1 << 20]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    st.booleans(),
    st.integers(0, 1 << 40),
)
def test_choices_are_those_of_the_rule_to_the_bit(
    vocab: int, temperature: float, top_k: int, top_p: float, spread: float, coarse: bool, seed: int
) -> None:
    """Many ties among coarse (bfloat16) logits, flat and peaked rows, supports of one token and of all."""
    logits = spread * torch.randn(12, vocab, generator=torch.Generator().manual_seed(seed))
    logits = logits.bfloat16() if coarse else logits
    sampling = Sampling(temperature, top_k, top_p, seed)
    positions = [row // 3 for row in range(12)]
    assert select(logits, positions, sampling) == by_the_rule(logits, positions, sampling)


def test_rows_that_are_no_numbers_are_chosen_from_as_the_rule_does() -> None:
    rows = torch.stack([torch.full((9,), float("nan")), torch.full((9,), float("inf")), torch.full((9,), -torch.inf)])
    rows[2, 3] = 0.0
    for sampling in (Sampling(), Sampling(0.7), Sampling(0.7, top_k=3, top_p=0.5)):
        assert select(rows, [1, 2, 3], sampling) == by_the_rule(rows, [1, 2, 3], sampling)


@given(st.sampled_from([0, 3, 40]), st.sampled_from([0.3, 0.9, 0.9999]), st.integers(0, 999), st.floats(0.5, 4.0))
def test_a_drafters_support_is_the_targets(top_k: int, top_p: float, seed: int, spread: float) -> None:
    logits = spread * torch.randn(3, 700, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(0.8, top_k, top_p, seed)
    exact = torch.isfinite(process_logits(logits, sampling))
    ours = torch.isfinite(draft_scores(logits, [1, 2, 3], sampling))
    assert int((exact != ours).sum(-1).max()) <= 1  # rounding at the edge of top-p


def test_noise_is_pinned() -> None:
    """Other versions and machines must draw the same: these numbers may never change."""
    np.testing.assert_allclose(
        gumbel_noise(seed=42, position=7, vocab_size=4), gumbel_noise(42, 7, 5)[:4], rtol=0, atol=0
    )
    pinned = [round(float(x), 5) for x in gumbel_noise(42, 7, 4)]
    assert pinned == [1.16948, 0.22575, 0.87037, -0.16909]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_noise_is_a_function_of_seed_and_position(seed: int, position: int) -> None:
    noise = gumbel_noise(seed, position, 65)
    assert np.isfinite(noise).all()
    assert not np.array_equal(noise, gumbel_noise(seed, position + 1, 65))
    assert not np.array_equal(noise, gumbel_noise(seed ^ 1, position, 65))


def test_top_k_and_top_p_keep_what_they_say() -> None:
    kept = torch.isfinite(process_logits(LOGITS, Sampling(1.0, top_k=3)))
    assert kept.tolist() == [True] * 3 + [False] * 9
    probabilities = LOGITS.softmax(-1)
    kept = torch.isfinite(process_logits(LOGITS, Sampling(1.0, top_p=0.6)))
    smallest = int((probabilities.cumsum(-1) < 0.6).sum()) + 1
    assert int(kept.sum()) == smallest
    assert torch.isfinite(process_logits(LOGITS, Sampling(1.0, top_p=1e-9))).sum() == 1


def test_greedy_needs_no_noise() -> None:
    assert select(LOGITS[None], [0], Sampling(seed=9)) == [0]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_values_outside_their_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(values))} is .*expected"):
        Sampling(**values)  # type: ignore[arg-type]
