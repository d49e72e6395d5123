"""The coupled choice from one row, without sorting the vocabulary or normalising it.

Pure. Noise is bounded, so only tokens near the likeliest can win; the rule is evaluated only for those. Invariant: the
result is that of `process_logits` and argmax in float32, or None where rounding there could decide.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]

# Sums there and here differ by rounding: at most 2 units in the last place (1.2e-7) of the largest number involved.
_RELATIVE_MARGIN = 1e-6
_LARGEST_NOISE = 100.0  # and more than the log of any vocabulary
_SHARE_MARGIN = 1e-4  # of a cumulated probability, float32 over up to 260,000 tokens


def choose(scores: Row, noise: Row, top_k: int, top_p: float, min_p: float = 0.0) -> int | None:
    """The token that top-k, top-p, min-p and noise choose.

    Args:
        scores: [vocab] logits over temperature.
        noise: [vocab] Gumbel noise of the token's position.

    Returns:
        None: too near to call, or no numbers: evaluate the rule itself.
    """
    best = int(scores.argmax())
    top = float(scores[best])
    margin = _RELATIVE_MARGIN * (abs(top) + _LARGEST_NOISE)
    if (top_k <= 0 or top_k >= len(scores)) and top_p >= 1.0 and not min_p:
        return _clear_winner(scores + noise, margin)
    floor = top + float(noise[best]) - float(noise.max()) - 2 * margin
    if min_p:
        floor = max(floor, least_score(scores[best], min_p))
    near = np.flatnonzero(scores >= floor)  # the winner is one of them: `best` is in every support
    if not len(near):
        return None
    values, holds_support = scores[near], False
    if 0 < top_k < len(scores) and len(near) > top_k:
        kept = values >= np.partition(values, -top_k)[-top_k]  # those tied with the last of them too
        near, values, holds_support = near[kept], values[kept], True
    total = values + noise[near]
    if top_p < 1.0:
        mass = np.exp(values.astype(np.float64) - top)
        whole = float(mass.sum()) if holds_support else _support_mass(scores, top, top_k)
        order = np.argsort(-values, kind="stable")
        before = np.empty_like(mass)
        before[order] = np.cumsum(mass[order]) - mass[order]
        share = before / whole
        total = np.where(share < top_p - _SHARE_MARGIN, total, np.float32(-np.inf))
        unclear = (share >= top_p - _SHARE_MARGIN) & (share < top_p + _SHARE_MARGIN)
        if unclear.any() and float((values + noise[near])[unclear].max()) >= float(total.max()) - margin:
            return None
    winner = _clear_winner(total, margin)
    return None if winner is None else int(near[winner])


def least_score(largest: np.float32, min_p: float) -> float:
    """The least score that min-p keeps, exact in float32."""
    return float(largest + np.float32(math.log(min_p)))


def _support_mass(scores: Row, top: float, top_k: int) -> float:
    """Sum of exp(score - top) over the top-k tokens (all, without top-k)."""
    if 0 < top_k < len(scores):
        scores = scores[scores >= np.partition(scores, -top_k)[-top_k]]
    return float(np.exp(scores - np.float32(top)).sum(dtype=np.float64))


def _clear_winner(totals: npt.NDArray[Any], margin: float) -> int | None:
    """Index of the largest, if no other comes near it."""
    winner = int(totals.argmax())
    largest = float(totals[winner])
    totals[winner] = -np.inf
    return winner if largest - float(totals.max()) > margin else None
