"""Logit biases and penalties: what a token's logit loses or gains by the text before it.

Pure. What is done to a row depends on the tokens before its place and on the settings alone, so that a node of a draft
tree is judged as it would be without a draft, and a drafter ranks with what the target will choose by. In llama.cpp's
order: biases, then the repeat penalty, then presence and frequency. Repetition is looked for in the newest tokens of
the conversation, the prompt's too (as llama.cpp does, and CTRL, arXiv 1909.05858); presence and frequency count in the
answer alone (as OpenAI's API and vLLM do).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_shared.errors import InternalError
from moa_shared.sampling.scores import Columns, Scores
from moa_shared.sampling.settings import WHOLE_CONTEXT, Sampling

NO_COLUMN = -1


@dataclass(frozen=True, slots=True)
class TextBefore:
    """The tokens before the places that some rows of logits choose for.

    Args:
        tokens: up to the place below which all rows are; at least the newest `Sampling.looks_back`.
        paths: of each row, the tokens from there to its own place.
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

    Args:
        logits: [rows, columns] float32.
        positions: position of the token that each row chooses.
        before: the text before each row; needed where penalties are set.
        token_ids: the token of each column, for a reduced vocabulary.
    """
    if not sampling.adjusts:
        return logits
    rows = logits.copy()
    columns = _ColumnsOf(rows.shape[-1], token_ids)
    if sampling.logit_bias:
        tokens, values = zip(*sampling.logit_bias, strict=True)
        biased = columns.of(tokens)
        rows[:, biased[biased >= 0]] += np.array(values, dtype=np.float32)[biased >= 0]
    if sampling.reads_text:
        if before is None:
            raise InternalError("Penalties were asked for without the text that they depend on.")
        length = positions[0] - len(before.paths[0])  # of the text before all rows
        newest = before.tokens[max(0, len(before.tokens) - sampling.looks_back(length)) :]
        text, paths = columns.of(newest), [columns.of(path) for path in before.paths]
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


class _ColumnsOf:
    def __init__(self, width: int, token_ids: npt.NDArray[np.int64] | None) -> None:
        self._width = width
        self._columns: Columns | None = None  # by token; None: the token itself
        if token_ids is not None:
            self._columns = np.full(int(token_ids.max()) + 1, NO_COLUMN)
            self._columns[token_ids] = np.arange(width)

    def of(self, tokens: Sequence[int]) -> Columns:
        """The column of each token; NO_COLUMN for a token that has none."""
        found = np.array(tokens, dtype=np.int64)
        if self._columns is None:
            return np.where(found < self._width, found, NO_COLUMN)
        inside = found < len(self._columns)
        found[inside] = self._columns[found[inside]]
        found[~inside] = NO_COLUMN
        return found
