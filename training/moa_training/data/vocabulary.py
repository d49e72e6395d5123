"""The reduced draft vocabulary: the tokens that the target writes most often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch

from moa_training.data.shards import TokenRow


def choose_draft_ids(rows: Sequence[TokenRow], size: int, vocab_size: int) -> tuple[torch.Tensor, float]:
    """The `size` most frequent tokens of answers, then of whole conversations, then the lowest ids.

    Returns:
        ids [size] int32, sorted, and the share of answer tokens that they cover.
    """
    answers = _count((row.ids[start:stop] for row in rows for start, stop in row.answers), vocab_size)
    everything = _count((row.ids for row in rows), vocab_size)
    tie_break = torch.arange(vocab_size, dtype=torch.float64) / vocab_size
    score = answers * 1e9 + everything * 1e3 - tie_break
    ids = score.topk(min(size, vocab_size)).indices.sort().values
    covered = float(answers[ids].sum() / answers.sum().clamp(min=1))
    return ids.to(torch.int32), covered


def _count(texts: Iterable[Sequence[int]], vocab_size: int) -> torch.Tensor:
    """How often each token occurs, [vocab_size] float64."""
    ids = np.fromiter(chain.from_iterable(texts), np.int64)
    return torch.from_numpy(np.bincount(ids, minlength=vocab_size).astype(np.float64))
