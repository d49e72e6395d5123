"""Rows of scores in float32: their log-softmax, and the largest of each row.

Pure. A row at a time where that keeps it in the processor's cache. NaN spreads over its row silently.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moa_shared.errors import InternalError
from moa_shared.sampling.settings import WHOLE_CONTEXT, Sampling

Scores = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]


def log_softmax(scores: Scores) -> Scores:
    """Log-probabilities along the last axis, in a new array: score - largest - log(sum(exp))."""
    result = np.empty(scores.shape, dtype=np.float32)
    width = scores.shape[-1]
    powers = np.empty(width, dtype=np.float32)
    with np.errstate(all="ignore"):
        for row, out in zip(scores.reshape(-1, width), result.reshape(-1, width), strict=True):
            np.subtract(row, row.max(), out=out)
            np.exp(out, out=powers)
            out -= np.log(powers.sum())
    return result


def largest(scores: Scores, count: int) -> tuple[Scores, Columns]:
    """The largest numbers of each row and their columns, [rows, count], largest first; equal ones by their columns.

    A row is cut into stripes: the `count` largest of their maxima are `count` numbers of the row, so that nothing below
    the least of them is looked at again. A tenth of the time of `np.argpartition`.
    """
    rows, width = scores.shape
    stripes = max(256, 4 * count)
    found: list[Columns] = []
    if width < 2 * stripes:
        found = [_descending(row)[:count] for row in scores]
    else:
        maxima = scores[:, : width // stripes * stripes].reshape(rows, -1, stripes).max(axis=1)
        maxima.partition(stripes - count, axis=1)
        for row, least in zip(scores, maxima[:, stripes - count], strict=True):
            candidates = np.flatnonzero(row >= least)
            if len(candidates) < count:  # a row that holds what is no number
                candidates = np.arange(width)
            found.append(candidates[_descending(row[candidates])[:count]])
    columns = np.array(found, dtype=np.int64).reshape(rows, count)
    return np.take_along_axis(scores, columns, axis=1), columns


def _descending(row: Scores) -> Columns:
    return np.argsort(-row, kind="stable")


# Sums there and here differ by rounding: at most 2 units in the last place (1.2e-7) of the largest number involved.
_RELATIVE_MARGIN = 1e-6
_SHARE_MARGIN = 1e-4  # of a cumulated probability, float32 over up to 260,000 tokens


def choose(scores: Scores, noise: Scores, top_k: int, top_p: float, min_p: float = 0.0) -> int | None:
    """The token that top-k, top-p, min-p and noise choose; None: it is too near to call: evaluate the rule itself.

    `scores`: [vocab] logits over temperature; `noise`: [vocab] Gumbel noise of the token's position.
    """
    best = int(scores.argmax())
    top = float(scores[best])
    margin = _RELATIVE_MARGIN * (abs(top) + 100.0)  # of the largest noise, and more than the log of any vocabulary
    if (top_k <= 0 or top_k >= len(scores)) and top_p >= 1.0 and not min_p:
        return _clear_winner(scores + noise, margin)
    floor = top + float(noise[best]) - float(noise.max()) - 2 * margin
    if min_p:
        floor = max(floor, float(scores[best] + np.float32(math.log(min_p))))  # exact in float32
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


def _support_mass(scores: Scores, top: float, top_k: int) -> float:
    if 0 < top_k < len(scores):
        scores = scores[scores >= np.partition(scores, -top_k)[-top_k]]
    return float(np.exp(scores - np.float32(top)).sum(dtype=np.float64))


def _clear_winner(totals: npt.NDArray[Any], margin: float) -> int | None:
    winner = int(totals.argmax())
    largest = float(totals[winner])
    totals[winner] = -np.inf
    return winner if largest - float(totals.max()) > margin else None


class TextBefore(NamedTuple):
    """The tokens before the places that some rows of logits choose for.

    `tokens`: up to where all rows are below, at least the newest `Sampling.looks_back`; `paths`: from there to a row.
    """

    tokens: Sequence[int]
    paths: Sequence[Sequence[int]]


def adjusted(
    logits: Scores,
    positions: Sequence[int],
    sampling: Sampling,
    before: TextBefore | None = None,
    token_ids: npt.NDArray[np.int64] | None = None,
) -> Scores:
    """Logits with biases and penalties, in a new array; `logits` itself where there are none.

    `logits`: [rows, columns] float32. `positions`: position of the token that each row chooses. `before`: the text
    before each row; needed where penalties are set. `token_ids`: the token of each column, for a reduced vocabulary.
    """
    if not sampling.adjusts:
        return logits
    rows = logits.copy()
    columns_of = _columns_of(rows.shape[-1], token_ids)
    if sampling.logit_bias:
        tokens, values = zip(*sampling.logit_bias, strict=True)
        biased = columns_of(tokens)
        rows[:, biased[biased >= 0]] += np.array(values, dtype=np.float32)[biased >= 0]
    if sampling.reads_text:
        if before is None:
            raise InternalError("Penalties were asked for without the text that they depend on.")
        length = positions[0] - len(before.paths[0])  # of the text before all rows
        newest = before.tokens[max(0, len(before.tokens) - sampling.looks_back(length)) :]
        text, paths = columns_of(newest), list(map(columns_of, before.paths))
        if sampling.penalises_repeats:
            _penalise_repeats(rows, text, paths, sampling)
        if sampling.penalises_answer:
            _penalise_answer(rows, text[len(text) - max(0, length - sampling.answer_start) :], paths, sampling)
    return rows


def _penalise_repeats(rows: Scores, text: Columns, paths: Sequence[Columns], sampling: Sampling) -> None:
    """Divides positive logits and multiplies the others, of columns among the newest tokens before each row."""
    penalty, most = np.float32(sampling.repeat_penalty), sampling.repeat_last_n
    recent: dict[int, Columns] = {}  # of `text` alone, by how long the path is: siblings share it
    for row, path in zip(rows, paths, strict=True):
        length = len(path)
        if length not in recent:
            rest = len(text) if most == WHOLE_CONTEXT else max(0, most - length)
            recent[length] = np.unique(text[max(0, len(text) - rest) :])
        newest = path if most == WHOLE_CONTEXT else path[-most:]
        found = np.union1d(recent[length], newest) if length else recent[length]
        found = found[found >= 0]
        values = row[found]
        row[found] = np.where(values > 0, values / penalty, values * penalty)


def _penalise_answer(rows: Scores, answer: Columns, paths: Sequence[Columns], sampling: Sampling) -> None:
    """Takes presence and frequency off the logits of the columns that the answer has before each row."""
    answer = answer[answer >= 0]
    counts = np.bincount(answer, minlength=rows.shape[-1])
    known = np.flatnonzero(counts)
    for row, path in zip(rows, paths, strict=True):
        new = path[path >= 0]
        np.add.at(counts, new, 1)
        found = np.union1d(known, new) if len(new) else known
        amount = sampling.presence_penalty + sampling.frequency_penalty * counts[found]
        row[found] -= amount.astype(np.float32)
        np.subtract.at(counts, new, 1)


def _columns_of(width: int, token_ids: Columns | None) -> Callable[[Sequence[int]], Columns]:
    """A function that gives the column of each token; -1 for a token that has none."""
    columns = np.arange(width)  # by token
    if token_ids is not None:
        columns = np.full(int(token_ids.max()) + 1, -1)
        columns[token_ids] = np.arange(width)

    def of(tokens: Sequence[int]) -> Columns:
        found = np.array(tokens, dtype=np.int64)
        inside = found < len(columns)
        found[inside] = columns[found[inside]]
        found[~inside] = -1
        return found

    return of
