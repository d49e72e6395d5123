"""Coupled sampling: the text is a function of (target, prompt, settings, seed) and of nothing else. Pure.

The token at position t is argmax(log p_t + g_t): p_t is the target's processed distribution, g_t is Gumbel noise keyed
by (seed, t) (the Gumbel-max trick; Daliri et al., arXiv 2408.07978), on any machine and for any batch. A drafter whose
distribution is close picks the same token, since it uses the same g_t, and no probabilities cross the wire.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moa_shared.errors import InternalError
from moa_shared.sampling.scores import Scores, TextBefore, adjusted, choose, largest, log_softmax
from moa_shared.sampling.settings import Sampling

_NEVER = np.float32(-np.inf)
_OUTSIDE = np.float32(math.log(0.5))  # of a token that the drafter would not choose, at most, beside its choice


@lru_cache(maxsize=128)  # a few answers' open positions at 200 KB each; a tree's siblings share one position
def gumbel_noise(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.float32]:
    """Gumbel noise for the token at `position`, [vocab_size] float32, read-only.

    Only Philox's raw words are used: NumPy promises those for all versions, and they do not depend on `vocab_size`.
    """
    words = np.random.Philox(key=seed, counter=[0, position, 0, 0]).random_raw((vocab_size + 1) // 2)
    halves = np.ascontiguousarray(words, dtype="<u8").view("<u4")[:vocab_size]
    uniform = (halves.astype(np.float64) + 0.5) * 2.0**-32  # strictly inside (0, 1)
    noise = -np.log(-np.log(uniform))
    result: npt.NDArray[np.float32] = noise.astype(np.float32)
    result.setflags(write=False)
    return result


def process_logits(logits: Scores, sampling: Sampling) -> Scores:
    """Log-probabilities after temperature, top-k, top-p and min-p, in that order; -inf outside the support.

    `logits`: [..., vocab] float32, with biases and penalties. Greedy: the plain log-softmax.
    """
    if sampling.greedy:
        return log_softmax(logits)
    scores = _keep_top_k(_warmed(logits, sampling), sampling.top_k)
    if sampling.top_p < 1.0:
        order = np.argsort(-scores, axis=-1, kind="stable")
        ordered = np.take_along_axis(scores, order, axis=-1)
        with np.errstate(all="ignore"):
            probabilities = np.exp(ordered - ordered[..., :1])
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        # Mass of the strictly likelier tokens; summed in float64, because the vocabulary is large.
        before = np.cumsum(probabilities, axis=-1, dtype=np.float64).astype(np.float32) - probabilities
        outside = np.empty(scores.shape, dtype=np.bool_)
        np.put_along_axis(outside, order, before >= sampling.top_p, axis=-1)
        scores[outside] = -np.inf
    return log_softmax(_keep_min_p(scores, sampling.min_p))


def permitted(
    logits: Scores,
    positions: Sequence[int],
    sampling: Sampling,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Scores:
    """Logits with biases and penalties, -inf for tokens that are not allowed; the arguments are those of `select`."""
    logits = adjusted(logits, positions, sampling, before)
    return logits if allowed is None else np.where(allowed[:, : logits.shape[-1]], logits, _NEVER)


def select(
    logits: Scores,
    positions: Sequence[int],
    sampling: Sampling,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> list[int]:
    """The token chosen from each row of logits: argmax of `process_logits` + noise, or of the logits (greedy).

    `logits`: [rows, vocab] float32, the target's; InternalError where they are not numbers. `positions`: of the token
    that each row chooses. `before`: the text before each row, for penalties. `allowed`: [rows, vocab or more], which
    tokens may be chosen; None: all.
    """
    logits = adjusted(logits, positions, sampling, before)
    if allowed is None:
        return _choose_rows(logits, positions, sampling)
    rows = zip(logits, allowed[:, : logits.shape[-1]], positions, strict=True)
    return [_choose_allowed(row, mask, position, sampling) for row, mask, position in rows]


def _choose_allowed(row: Scores, allowed: npt.NDArray[np.bool_], position: int, sampling: Sampling) -> int:
    """The choice among the allowed tokens: as among all, if the others were infinitely unlikely."""
    tokens = np.flatnonzero(allowed)
    if not 0 < 8 * len(tokens) <= len(row):  # a choice among so few alone takes a tenth of the time
        return _choose_rows(np.where(allowed, row, _NEVER)[None], [position], sampling)[0]
    scores = row[tokens] if sampling.greedy else _warmed(row[tokens], sampling)
    best = int(scores.argmax())
    if not math.isfinite(scores[best]):
        raise _not_finite(position)
    if sampling.greedy:
        return int(tokens[best])
    noise = gumbel_noise(sampling.seed, position, len(row))
    token = choose(scores, noise[tokens], sampling.top_k, sampling.top_p, sampling.min_p)
    return int(tokens[token]) if token is not None else _choose_plainly(np.where(allowed, row, _NEVER), noise, sampling)


def _choose_rows(logits: Scores, positions: Sequence[int], sampling: Sampling) -> list[int]:
    chosen: list[int] = []
    if sampling.greedy:  # with one call: each gives the interpreter's lock away and waits for it again
        chosen = logits.argmax(axis=-1).tolist()
        for row, best, position in zip(logits, chosen, positions, strict=True):
            if not math.isfinite(row[best]):
                raise _not_finite(position)
        return chosen
    warm = np.empty(logits.shape[-1], dtype=np.float32)
    for row, position in zip(logits, positions, strict=True):  # a row stays in the processor's cache
        scores = _warmed(row, sampling, warm)
        if not math.isfinite(scores[scores.argmax()]):  # of a row that holds a NaN, that one
            raise _not_finite(position)
        noise = gumbel_noise(sampling.seed, position, len(row))
        token = choose(scores, noise, sampling.top_k, sampling.top_p, sampling.min_p)
        chosen.append(_choose_plainly(row, noise, sampling) if token is None else token)
    return chosen


def _not_finite(position: int) -> InternalError:
    return InternalError(
        f"The target's logits at position {position} are not finite.",
        hint="Its weights or its arithmetic are broken: choose another --execution or --model.",
    )


def _choose_plainly(logits: Scores, noise: Scores, sampling: Sampling) -> int:
    return int((process_logits(logits, sampling) + noise).argmax())


def draft_scores(
    logits: Scores,
    positions: Sequence[int],
    sampling: Sampling,
    token_ids: npt.NDArray[np.int64] | None = None,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Scores:
    """Log-scores by which a drafter ranks its candidates: how likely it is that the target will choose each.

    Greedy: the drafter's log-probabilities (as in the paper). Sampled: the log-softmax of logits + temperature * g,
    whose best inside the support is the coupled choice. What the target's logits differ by is as large at any
    temperature, so the lead over the other tokens counts in logits: at low temperatures support leaves one token, also
    where the two models differ (docs/measurements/alone.md). Tokens outside the support come after the choice, since
    they may be inside the target's.

    Arguments are as of `select`, but `logits` is the drafter's: [rows, vocab] or, with `token_ids` (the target's token
    of each column), [rows, draft vocab]. A row of whose columns none is allowed is scored as if all were.
    """
    logits = adjusted(logits, positions, sampling, before, token_ids)
    if not np.isfinite(logits.max(axis=-1)).all():  # NaN where a row holds one
        raise InternalError("The drafter's logits are not finite.", hint="Choose another --drafter, or --drafter none.")
    if allowed is not None:
        columns = allowed[:, : logits.shape[-1]] if token_ids is None else allowed[:, token_ids]
        logits = np.where(columns | ~columns.any(axis=-1, keepdims=True), logits, _NEVER)
    if sampling.greedy:
        return log_softmax(logits)
    warm = _warmed(logits, sampling)
    noisy = np.empty(warm.shape, dtype=np.float32)
    size = warm.shape[-1] if token_ids is None else int(token_ids.max()) + 1
    noise: dict[int, Scores] = {}
    for row, out, position in zip(warm, noisy, positions, strict=True):
        if position not in noise:  # siblings share one
            whole = gumbel_noise(sampling.seed, position, size)
            noise[position] = whole if token_ids is None else whole[token_ids]
        np.add(row, noise[position], out=out)
        out *= np.float32(sampling.temperature)
    scores = log_softmax(noisy)
    if sampling.top_k or sampling.top_p < 1.0 or sampling.min_p:
        for row, support in zip(scores, _draft_support(warm, sampling), strict=True):
            inside = np.flatnonzero(support > -np.inf)
            kept = row[inside]
            np.minimum(row, kept.max() + _OUTSIDE, out=row)
            row[inside] = kept
    return scores


def draft_candidates(
    logits: Scores,
    positions: Sequence[int],
    sampling: Sampling,
    count: int,
    token_ids: npt.NDArray[np.int64] | None = None,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> tuple[Scores, npt.NDArray[np.int64]]:
    """The `count` best of each row by `draft_scores`: log-scores and the target's tokens, best first."""
    scores = draft_scores(logits, positions, sampling, token_ids, before, allowed)
    best, columns = largest(scores, min(count, scores.shape[-1]))
    return best, columns if token_ids is None else token_ids[columns]


def _draft_support(scores: Scores, sampling: Sampling) -> Scores:
    """`scores`, changed to -inf outside the support; of equal scores at the edge of top-p all are kept."""
    scores = _keep_top_k(scores, sampling.top_k)
    if sampling.top_p < 1.0:
        count, size = 512, scores.shape[-1]
        tops = scores.max(axis=-1, keepdims=True)
        with np.errstate(all="ignore"):
            mass = np.exp(scores - tops).sum(axis=-1, keepdims=True)
        while True:
            likeliest, _ = largest(scores, min(count, size))
            with np.errstate(all="ignore"):
                probabilities = np.exp(likeliest - tops) / mass
            inside = np.cumsum(probabilities, axis=-1) - probabilities < sampling.top_p
            if count >= size or not inside[:, -1].any():
                break
            count *= 8  # a flat distribution
        least = np.where(inside, likeliest, np.float32(np.inf)).min(axis=-1, keepdims=True)
        scores[scores < least] = -np.inf
    return _keep_min_p(scores, sampling.min_p)


def _warmed(logits: Scores, sampling: Sampling, out: Scores | None = None) -> Scores:
    """Logits divided by temperature, in a new array or in `out`."""
    with np.errstate(all="ignore"):
        return np.divide(logits, np.float32(sampling.temperature), out=out)


def _keep_top_k(scores: Scores, top_k: int) -> Scores:
    size = scores.shape[-1]
    if 0 < top_k < size:
        least = np.partition(scores, size - top_k, axis=-1)[..., size - top_k, None]
        scores[scores < least] = -np.inf
    return scores


def _keep_min_p(scores: Scores, min_p: float) -> Scores:
    if min_p:
        least = scores.max(axis=-1, keepdims=True) + np.float32(math.log(min_p))
        scores[scores < least] = -np.inf
    return scores
