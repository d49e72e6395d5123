"""The coupling rule: exact for the target's distribution, the same on both ends, keyed by (seed, position)."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError, InternalError
from moa_shared.protocol.memory_codec import round_to_bfloat16, widen_bfloat16
from moa_shared.sampling.coupling import draft_candidates, draft_scores, gumbel_noise, process_logits, select
from moa_shared.sampling.scores import adjusted
from moa_shared.sampling.settings import LEAST_TEMPERATURE, Sampling
from moa_shared.tree import DraftTree, longest_path
from scipy import stats

from tests.support.messages import raises
from tests.support.skipping import examples

VOCAB = 12
SAMPLES = 20_000
LOGITS = np.array([2.0, 1.5, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5, -3.0], np.float32)
DRAFT_LOGITS = LOGITS + np.array([0.5, -0.5] * 6, np.float32)


Rows = npt.NDArray[np.float32]


def normal(*shape: int, seed: int) -> Rows:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def chi_square_p(chosen: np.ndarray, expected: np.ndarray) -> float:
    kept = expected > 0
    counts = np.bincount(chosen, minlength=VOCAB)
    if counts[~kept].any():
        return 0.0
    exact = expected[kept].astype(np.float64)
    return float(stats.chisquare(counts[kept], exact / exact.sum() * len(chosen)).pvalue)


def speculative_samples(sampling: Sampling, verify_with: Sampling) -> np.ndarray:
    """The first token of 20,000 verified drafts: drafted with one rule, verified with (perhaps) another one."""
    positions, chosen = range(SAMPLES + 1), []
    drafts = draft_scores(np.tile(DRAFT_LOGITS, (SAMPLES, 1)), positions[:-1], sampling).argmax(-1).tolist()
    targets = select(np.tile(LOGITS, (SAMPLES + 1, 1)), positions, verify_with)
    for drafted, root, after in zip(drafts, targets, targets[1:], strict=False):
        tree = DraftTree.chain([drafted])
        path, bonus = longest_path(tree, root, [after])
        chosen.append(tree.tokens[path[0]] if path else bonus)
    return np.array(chosen)


@pytest.mark.parametrize("sampling", [
    Sampling(1.0, seed=3), Sampling(0.7, seed=4), Sampling(1.0, top_k=4, seed=5), Sampling(1.0, top_p=0.8, seed=6),
    Sampling(1.0, min_p=0.2, seed=7),
    Sampling(1.0, top_p=0.95, seed=8, min_p=0.1, logit_bias=((3, 1.0), (0, -2.0))),
], ids=str)  # fmt: skip
def test_samples_follow_the_processed_distribution(sampling: Sampling) -> None:
    chosen = speculative_samples(sampling, sampling)
    expected = np.exp(process_logits(adjusted(LOGITS[None], [0], sampling)[0], sampling))
    assert chi_square_p(chosen, expected) > 0.001


def test_the_drafter_makes_the_targets_choice_when_it_agrees() -> None:
    sampling = Sampling(0.9, top_p=0.95, seed=1)
    target = normal(200, 500, seed=0) * 3
    positions = list(range(200))
    drafted = draft_scores(target, positions, sampling).argmax(-1).tolist()
    assert drafted == select(target, positions, sampling)
    near = (
        draft_scores(target + np.float32(0.1) * normal(*target.shape, seed=1), positions, sampling).argmax(-1).tolist()
    )
    assert np.mean(np.array(near) == np.array(drafted)) > 0.8


def test_a_reduced_vocabulary_uses_the_noise_of_the_targets_ids() -> None:
    sampling = Sampling(1.0, seed=2)
    ids = np.array([7, 2, 9])
    full = np.full((1, 12), -np.inf, np.float32)
    full[0, ids] = LOGITS[ids]
    reduced = draft_scores(LOGITS[ids][None], [4], sampling, ids)
    assert int(ids[reduced.argmax()]) == select(full, [4], sampling)[0]


def by_the_rule(logits: Rows, positions: list[int], sampling: Sampling) -> list[int]:
    """The rule as it is written down: everything sorted, normalised, and the argmax taken."""
    return argmax_with_noise(process_logits(logits, sampling), positions, sampling)


def argmax_with_noise(scores: Rows, positions: list[int], sampling: Sampling) -> list[int]:
    if sampling.greedy:
        return [int(token) for token in scores.argmax(-1)]
    noise = np.stack([gumbel_noise(sampling.seed, position, scores.shape[-1]) for position in positions])
    return [int(token) for token in (scores + noise).argmax(-1)]


@settings(max_examples=examples(300))
@given(
    st.sampled_from([1, 2, 30, 500, 4000]), st.sampled_from([0.0, LEAST_TEMPERATURE, 0.3, 0.8, 1.5, 90.0]),
    st.sampled_from([0, 1, 2, 20, 300, 1 << 20]), st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 1e-9, 0.02, 0.3, 1.0]), st.sampled_from([0.0, 0.5, 3.0, 20.0]), st.booleans(),
    st.integers(0, 1 << 40),
)  # fmt: skip
def test_choices_are_those_of_the_rule_to_the_bit(
    vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, spread: float, coarse: bool, seed: int
) -> None:
    """Many ties among coarse (bfloat16) logits, flat and peaked rows, supports of one token and of all."""
    logits = np.float32(spread) * normal(12, vocab, seed=seed)
    logits = widen_bfloat16(round_to_bfloat16(logits)) if coarse else logits
    sampling = Sampling(temperature, top_k, top_p, seed, min_p)
    positions = [row // 3 for row in range(12)]
    assert select(logits, positions, sampling) == by_the_rule(logits, positions, sampling)


HOWS = (Sampling(), Sampling(0.7), Sampling(0.7, top_k=3, top_p=0.5))


@pytest.mark.parametrize("sampling", HOWS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whole", [False, True])
def test_rows_that_are_no_numbers_are_an_error(sampling: Sampling, number: float, whole: bool) -> None:
    good = normal(9, seed=1)
    bad = np.full(9, number, np.float32) if whole else np.where(np.arange(9) == 4, np.float32(number), good)
    if whole or number != -np.inf:
        with pytest.raises(InternalError, match="The target's logits at position 8 are not finite"):
            select(np.stack([good, bad]), [7, 8], sampling)
        with raises(
            InternalError, snapshot("The drafter's logits are not finite. Choose another --drafter, or --drafter none.")
        ):
            draft_scores(np.stack([good, bad]), [7, 8], sampling)
    else:  # one token that cannot be is no defect
        assert select(bad[None], [8], sampling) == by_the_rule(bad[None], [8], sampling)


def test_the_least_temperature_still_chooses_by_logits_and_noise() -> None:
    sampling = Sampling(LEAST_TEMPERATURE, seed=3)
    rows = np.float32(1e4) * normal(50, 400, seed=2)
    assert select(rows, range(50), sampling) == rows.argmax(axis=-1).tolist()
    close = np.zeros((50, 400), np.float32)
    assert len(set(select(close, range(50), sampling))) > 30


@given(
    st.sampled_from([0, 3, 40]), st.sampled_from([0.3, 0.9, 0.9999]), st.sampled_from([0.0, 0.05]), st.integers(0, 999),
    st.floats(0.5, 4.0),
)  # fmt: skip
def test_what_a_drafter_would_not_choose_comes_after_its_choice(
    top_k: int, top_p: float, min_p: float, seed: int, spread: float
) -> None:
    logits = np.float32(spread) * normal(3, 700, seed=seed)
    sampling = Sampling(0.8, top_k, top_p, seed, min_p)
    scores, chosen = draft_scores(logits, [1, 2, 3], sampling), select(logits, [1, 2, 3], sampling)
    assert np.isfinite(scores).all()  # it may be in the target's support
    for row, exact, choice in zip(scores, process_logits(logits, sampling), chosen, strict=True):
        later = np.sort(row[~np.isfinite(exact)])
        assert row.argmax() == choice or not np.isfinite(exact[row.argmax()])  # rounding at the edge of top-p
        assert (later[:-1] <= row.max() + np.log(0.5) + 1e-6).all()


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_low_temperature_makes_no_drafter_surer_than_greedily(top_p: float) -> None:
    logits = normal(4, 700, seed=2)
    cold = draft_scores(logits, [1, 2, 3, 4], Sampling(LEAST_TEMPERATURE, seed=5, top_p=top_p))
    likeliest = logits.argmax(-1)[:, None]
    greedy = np.take_along_axis(draft_scores(logits, [1, 2, 3, 4], Sampling()), likeliest, -1)
    np.testing.assert_allclose(np.take_along_axis(cold, likeliest, -1), greedy, atol=0.02)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=40, top_p=0.9, seed=1)], ids=str)
@pytest.mark.parametrize("reduced", [True, False])
def test_candidates_are_the_best_of_the_scores(sampling: Sampling, reduced: bool) -> None:
    logits, positions = normal(3, 700, seed=5) * 3, [4, 4, 5]
    ids = np.random.default_rng(6).permutation(2000)[:700] if reduced else None
    scores = draft_scores(logits, positions, sampling, ids)
    best, tokens = draft_candidates(logits, positions, sampling, 16, ids)
    columns = np.argsort(-scores, axis=1, kind="stable")[:, :16]
    np.testing.assert_array_equal(tokens, columns if ids is None else ids[columns])
    np.testing.assert_array_equal(best, np.take_along_axis(scores, columns, axis=1))
    assert draft_candidates(logits[:, :5], positions, sampling, 16)[1].shape == (3, 5)


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


def test_the_support_is_what_is_said() -> None:
    probabilities = np.exp(process_logits(LOGITS, Sampling()))
    smallest = int((probabilities.cumsum(-1) < 0.6).sum()) + 1
    likely = int((probabilities >= 0.2 * probabilities.max()).sum())
    for sampling, count in (
        (Sampling(1.0, top_k=3), 3),
        (Sampling(1.0, top_p=0.6), smallest),
        (Sampling(1.0, top_p=1e-9), 1),
        (Sampling(1.0, min_p=0.2), likely),
        (Sampling(1.0, min_p=1.0), 1),
    ):
        assert np.isfinite(process_logits(LOGITS, sampling)).tolist() == [True] * count + [False] * (VOCAB - count)


@pytest.mark.parametrize(("name", "values"), [
    ("temperature", [-0.1, math.nan, 1e-40, 0.9 * LEAST_TEMPERATURE]), ("top_k", [-1]), ("top_p", [0.0, 1.1]),
    ("seed", [-1, 2**64]), ("min_p", [-0.1, 1.1, math.nan]), ("repeat_penalty", [0.0, -1.0, 1e9, math.nan]),
    ("repeat_last_n", [-2, 2**31]), ("presence_penalty", [2.1, math.nan]), ("frequency_penalty", [-2.1, math.inf]),
])  # fmt: skip
def test_values_outside_their_range_are_refused(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"{name} is .*expected"):
            Sampling(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("bias", "message"), [
    ([(1, 1.0), (1, 2.0)], "names a token twice"), ([(-1, 1.0)], "names token -1, expected an id of 0 to 4294967295"),
    ([(1 << 32, 1.0)], "names token 4294967296, expected an id"),
    ([(1, 100.5)], "of token 1 is 100.5, expected -100 to 100"), ([(1, float("nan"))], "of token 1 is nan, expected"),
    ([(token, 0.0) for token in range(301)], "names 301 tokens, at most 300"),
], ids=str)  # fmt: skip
def test_biases_that_are_no_such_are_refused(bias: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(ConfigError, match=f"logit_bias {message}"):
        Sampling(logit_bias=tuple(bias))


@settings(max_examples=examples(200))
@given(
    seed=st.integers(0, 1 << 20),
    share=st.sampled_from([0.0, 0.02, 0.1, 0.6, 1.0]),
    sampling=st.builds(
        Sampling, temperature=st.sampled_from([0.0, 0.7, 1.5]), top_k=st.sampled_from([0, 1, 3]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]), min_p=st.sampled_from([0.0, 0.1]),
        logit_bias=st.sampled_from([(), ((3, 2.0), (70, -1.0))]),
    ),
)  # fmt: skip
def test_a_choice_among_allowed_tokens_is_that_among_all_if_the_others_were_impossible(
    seed: int, share: float, sampling: Sampling
) -> None:
    random = np.random.default_rng(seed)
    logits = np.round(normal(3, 80, seed=seed) * 4, 1).astype(np.float32)  # so that some tie
    allowed = random.random((3, 90)) < share
    allowed[:, random.integers(80)] = True
    masked = np.where(allowed[:, :80], logits, np.float32(-np.inf))
    assert select(logits, [5, 6, 7], sampling, None, allowed) == select(masked, [5, 6, 7], sampling)
