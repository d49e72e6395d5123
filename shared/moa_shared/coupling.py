"""Coupled sampling: the text is a function of (target, prompt, settings, seed) and of nothing else.

The token at position t is argmax(log p_t + g_t): p_t is the target's processed distribution, g_t is Gumbel noise keyed
by (seed, t) (the Gumbel-max trick; Daliri et al., arXiv 2408.07978). Drafter and target use the same g_t, so that
a drafter whose distribution is close picks the same token, and no probabilities cross the wire.
Pure: noise depends on its arguments alone, on any machine and for any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moa_shared.errors import ConfigError
from moa_shared.gumbel_choice import choose

if TYPE_CHECKING:
    import torch

SEED_LIMIT = 1 << 64
_LIKELIEST = 512  # tokens looked at for top-p before all are


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from the target's distribution.

    Args:
        temperature: divides the logits; 0 is greedy (no noise).
        top_k: keep only the k likeliest tokens (and those tied with the last of them); 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probabilities reach this sum; 1 keeps all.
        seed: 0 to 2**64 - 1; keys the noise. The same seed gives the same text.

    Raises:
        ConfigError: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:  # NaN fails too
            raise ConfigError(f"temperature is {self.temperature}, expected 0 (greedy) to 100.")
        if not 0 <= self.top_k < 1 << 31:
            raise ConfigError(f"top_k is {self.top_k}, expected 0 (off) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}, expected more than 0 and at most 1.")
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"seed is {self.seed}, expected 0 to 2**64 - 1.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@lru_cache(maxsize=128)  # a few answers' open positions at 200 KB each; a tree's siblings share one position
def gumbel_noise(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.float32]:
    """Gumbel noise for the token at `position`, [vocab_size] float32, read-only.

    Philox is counter-based: the key is the seed, the counter starts at the position. Only its raw words are used,
    because NumPy promises those for all versions, and the words of a position do not depend on `vocab_size`.
    """
    words = np.random.Philox(key=seed, counter=[0, position, 0, 0]).random_raw((vocab_size + 1) // 2)
    halves = np.ascontiguousarray(words, dtype="<u8").view("<u4")[:vocab_size]
    uniform = (halves.astype(np.float64) + 0.5) * 2.0**-32  # strictly inside (0, 1)
    noise = -np.log(-np.log(uniform))
    result: npt.NDArray[np.float32] = noise.astype(np.float32)
    result.setflags(write=False)
    return result


def process_logits(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities after temperature, top-k and top-p, in that order.

    Args:
        logits: [..., vocab] any float dtype.

    Returns:
        [..., vocab] float32; -inf outside the support. Greedy: the plain log-softmax.
    """
    import torch

    scores = logits.float()
    if sampling.greedy:
        return torch.log_softmax(scores, dim=-1)
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # mass of the strictly likelier tokens
        outside = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        scores = scores.masked_fill(outside, -torch.inf)
    return torch.log_softmax(scores, dim=-1)


def _noise_rows(
    positions: Sequence[int], sampling: Sampling, vocab_size: int, token_ids: torch.Tensor | None
) -> torch.Tensor:
    """[positions, vocab or len(token_ids)] float32."""
    import torch

    size = vocab_size if token_ids is None else int(token_ids.max()) + 1
    index = None if token_ids is None else token_ids.numpy()
    rows: dict[int, torch.Tensor] = {}
    for position in positions:
        if position not in rows:
            noise = gumbel_noise(sampling.seed, position, size)
            rows[position] = torch.from_numpy(noise.copy() if index is None else noise[index])
    return torch.stack([rows[position] for position in positions])


def select(logits: torch.Tensor, positions: Sequence[int], sampling: Sampling) -> list[int]:
    """The token chosen from each row of logits: argmax of `process_logits` + noise, or of the logits (greedy).

    Args:
        logits: [rows, vocab], the target's.
        positions: position of the token that each row chooses.
    """
    chosen: list[int] = []
    logits = logits.cpu()
    with _no_grad():
        for row, position in enumerate(positions):  # a row stays in the cache, a whole tree's logits do not
            values = logits[row].float()
            if sampling.greedy:
                chosen.append(int(values.numpy(force=True).argmax()))  # a twentieth of torch's argmax
                continue
            values = values / sampling.temperature
            noise = gumbel_noise(sampling.seed, position, values.shape[-1])
            token = choose(values.numpy(force=True), noise, sampling.top_k, sampling.top_p)
            chosen.append(_choose_plainly(logits[row], position, sampling) if token is None else token)
    return chosen


def _choose_plainly(logits: torch.Tensor, position: int, sampling: Sampling) -> int:
    """The rule itself, for one row."""
    scores = process_logits(logits[None], sampling)
    return int((scores + _noise_rows([position], sampling, scores.shape[-1], None)).argmax())


def draft_scores(
    logits: torch.Tensor, positions: Sequence[int], sampling: Sampling, token_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Log-scores by which a drafter ranks its candidates: how likely it is that the target will choose each.

    Greedy: the drafter's log-probabilities (as in the paper). Sampled: the softmax of log q + g, whose argmax is the
    coupled choice, and whose other values grade how near each other candidate came to it.

    Args:
        logits: [rows, vocab] or, with `token_ids`, [rows, draft vocab], the drafter's.
        positions: position of the token that each row would choose.
        token_ids: the target's token id of each column, for a reduced draft vocabulary.

    Returns:
        Same shape as `logits`, float32.
    """
    import torch

    if sampling.greedy:
        return torch.log_softmax(logits.float(), dim=-1)
    scores = _draft_support(logits.float() / sampling.temperature, sampling)
    return torch.log_softmax(scores + _noise_rows(positions, sampling, scores.shape[-1], token_ids), dim=-1)


def _draft_support(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """`scores` with -inf outside the support; of equal scores at the edge of top-p all are kept."""
    import torch

    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if sampling.top_p < 1.0:
        whole = torch.logsumexp(scores, dim=-1, keepdim=True)
        count, size = _LIKELIEST, scores.shape[-1]
        while True:
            likeliest = scores.topk(min(count, size), dim=-1).values
            probabilities = (likeliest - whole).exp()
            inside = probabilities.cumsum(dim=-1) - probabilities < sampling.top_p
            if count >= size or not bool(inside[..., -1].any()):
                break
            count *= 8  # a flat distribution
        least = likeliest.masked_fill(~inside, torch.inf).amin(dim=-1, keepdim=True)
        scores = scores.masked_fill(scores < least, -torch.inf)
    return scores


def _no_grad() -> torch.no_grad:
    import torch

    return torch.no_grad()
