"""Attention over pages: what each library's form of it is to the forward, and the one that runs anywhere.

The layers are transformers' own. Their attention is ours under a name that we register with transformers; it is given
the `Step` that writes the rows' keys and values and looks at those of their conversations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from moa_server.target.paged.batch import Batch, Part
from moa_server.target.paged.pool import PagePool

NAME = "moa_paged"


class Plan(ABC):
    """Attention for one batch after the other."""

    @abstractmethod
    def load(self, batch: Batch) -> None:
        """Prepares attention over the rows of `batch`; outside of graphs."""

    @abstractmethod
    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of one layer, whose new rows are written.

        Args:
            queries: rotated, [rows, heads, head_dim].

        Returns:
            [rows, heads, head_dim].
        """


class Attention(ABC):
    """One library's attention over the pool; its constructor takes the pool and the number of query heads."""

    name: str

    def __init__(self, pool: PagePool, heads: int) -> None:
        self.pool, self.heads = pool, heads

    @abstractmethod
    def new_plan(self, rows: int = 0, pages: int = 0) -> Plan:
        """A plan; with `rows`, one for a graph, whose tensors stay where they are.

        Args:
            rows: of each batch that it is loaded with; 0: any number.
            pages: the most that one conversation has.
        """


class Step:
    """What the attention of the layers works on during one forward; taken by transformers as a cache.

    Args:
        slots: where the new rows are written.
    """

    def __init__(self, pool: PagePool, slots: torch.Tensor, plan: Plan) -> None:
        self._pool, self._slots, self._plan = pool, slots, plan

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes one layer's new rows, [1, kv_heads, rows, head_dim]."""
        self._pool.write(layer, self._slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """[1, heads, rows, head_dim] to [1, rows, heads, head_dim]."""
        return self._plan.attend(layer, queries[0].transpose(0, 1))[None]


class SessionAttention(Attention):
    """Torch's own attention, one conversation after the other: the fast one on a CPU, which reads grouped heads."""

    name = "scaled_dot_product_attention"

    def new_plan(self, rows: int = 0, pages: int = 0) -> Plan:
        return SessionPlan(self.pool)


class SessionPlan(Plan):
    """A mask for each tree; nothing else is prepared."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool

    def load(self, batch: Batch) -> None:
        like = self._pool.tensor
        self._parts = [(part, _mask(part, like), _place(part.used_pages(), like.device)) for part in batch.parts]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        outputs, first = [], 0
        for part, mask, pages in self._parts:
            last = first + len(part.tokens)
            outputs.append(
                scaled_dot_product_attention(
                    queries[first:last].transpose(0, 1)[None],
                    _rows(self._pool.keys(layer), pages, part.length),
                    _rows(self._pool.values(layer), pages, part.length),
                    attn_mask=mask,
                    is_causal=mask is None and last - first > 1,
                    enable_gqa=True,
                )[0].transpose(0, 1)
            )
            first = last
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    step: Step | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What transformers calls; without a step (`model.generate`) transformers' own `sdpa`."""
    if step is None:
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, weights
    return step.attend(int(module.layer_idx), query), None  # type: ignore[arg-type]


def register() -> None:
    """Make the name known to transformers, with the masks of its own `sdpa`."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _mask(part: Part, like: torch.Tensor) -> torch.Tensor | None:
    """[rows, length] in the dtype and on the device of `like`: 0 where a row sees the column, -inf where not.

    None where attention needs none: a single row (it sees everything), a chain without prefix (plainly causal).
    """
    count = len(part.tokens)
    if count == 1 or (part.parents is None and part.prefix == 0):
        return None
    mask = np.zeros((count, part.length), np.float32)
    mask[:, part.prefix :][~part.seen()] = -np.inf
    return torch.from_numpy(mask).to(like.device, like.dtype)


def _place(pages: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Pages that lie one after the other need not be gathered."""
    if list(pages) == list(range(pages[0], pages[0] + len(pages))):
        return slice(pages[0], pages[0] + len(pages))
    return torch.tensor(pages, device=device)


def _rows(pages: torch.Tensor, place: slice | torch.Tensor, count: int) -> torch.Tensor:
    """[1, kv_heads, count, head_dim] of the pages at `place`."""
    return pages[place].flatten(0, 1)[:count].transpose(0, 1)[None]
