"""The reduced draft vocabulary: the tokens that the target writes most often."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from moa_training.data.shards import TokenRow


def choose_draft_ids(rows: Iterable[TokenRow], size: int, vocab_size: int) -> tuple[torch.Tensor, float]:
    """The `size` most frequent tokens of answers, then of whole conversations, then the lowest ids.

    Returns:
        ids [size] int32, sorted, and the share of answer tokens that they cover.
    """
    answers = torch.zeros(vocab_size, dtype=torch.float64)
    everything = torch.zeros(vocab_size, dtype=torch.float64)
    for row in rows:
        ids = torch.tensor(row.ids)
        everything += torch.bincount(ids, minlength=vocab_size)
        for start, stop in row.answers:
            answers += torch.bincount(ids[start:stop], minlength=vocab_size)
    tie_break = torch.arange(vocab_size, dtype=torch.float64) / vocab_size
    score = answers * 1e9 + everything * 1e3 - tie_break
    ids = score.topk(min(size, vocab_size)).indices.sort().values
    covered = float(answers[ids].sum() / answers.sum().clamp(min=1))
    return ids.to(torch.int32), covered
