"""Attention by FlashInfer's kernels for pages, with a mask for trees; imported on CUDA only, if it is installed.

The kernels are the second generation ("fa2"), which takes masks. A row's keys are never split among thread blocks, so
that its sums have one order, in a graph too.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

from moa_server.verifier.paged.attention import PLAIN, Attention, AttentionPlan, AttentionShape
from moa_server.verifier.paged.pool import FILLER, PAGE_ROWS, Batch, BatchPart, PagePool

WORKSPACE_BYTES = 128 << 20  # what its documentation recommends
IDLE = BatchPart([], [], 1, FILLER.pages)  # a conversation without rows: a graph's batch has as many as rows


class FlashInferAttention(Attention):
    """FlashInfer over the pool."""

    name = "FlashInfer"
    has_graphs = True

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        super().__init__(pool, heads, shape)
        self.library: Any = import_module("flashinfer")
        # Forwards come one after the other, so all of them share it.
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.tensor.device)

    def new_plan(self, rows: int = 0, pages: int = 0) -> AttentionPlan:
        return FlashInferPlan(self, rows, pages)


class FlashInferPlan(AttentionPlan):
    """FlashInfer's wrapper, planned for one batch after the other.

    Args:
        rows: of a graph's batches: each row may be a conversation of its own; 0: no graph.
        pages: the most that one conversation has.
    """

    def __init__(self, attention: FlashInferAttention, rows: int, pages: int) -> None:
        self._attention, self._rows = attention, rows
        device = attention.pool.tensor.device
        buffers: dict[str, Any] = {}
        if rows:
            numbers = {
                "qo_indptr_buf": rows + 1,
                "paged_kv_indptr_buf": rows + 1,
                "paged_kv_indices_buf": rows * pages,
                "paged_kv_last_page_len_buf": rows,
                "mask_indptr_buf": rows + 1,
            }
            buffers = {name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in numbers.items()}
            mask_bytes = rows * (pages * PAGE_ROWS // 8 + 1)  # each conversation's part begins at a byte
            buffers["custom_mask_buf"] = torch.zeros(mask_bytes, dtype=torch.uint8, device=device)
        self._wrapper = attention.library.BatchPrefillWithPagedKVCacheWrapper(
            attention.workspace, "NHD", use_cuda_graph=rows > 0, backend="fa2", **buffers
        )

    def load(self, batch: Batch) -> None:
        parts = [*batch.parts, *[IDLE] * (self._rows - len(batch.parts))]
        pool = self._attention.pool
        device, dtype = pool.tensor.device, pool.tensor.dtype
        kv_heads, head_dim = pool.tensor.shape[-2:]
        pages = [part.used_pages() for part in parts]
        masked = self._rows > 0 or not batch.is_causal  # a graph is recorded with a mask and always needs one
        mask = torch.from_numpy(flat_mask(parts)).to(device) if masked else None
        self._wrapper.plan(
            _offsets([len(part.tokens) for part in parts]),
            _offsets([len(each) for each in pages]),
            torch.tensor([page for each in pages for page in each], dtype=torch.int32, device=device),
            torch.tensor([(part.length - 1) % PAGE_ROWS + 1 for part in parts], dtype=torch.int32),
            self._attention.heads,
            kv_heads,
            head_dim,
            PAGE_ROWS,
            custom_mask=mask,
            causal=mask is None,
            q_data_type=dtype,
            kv_data_type=dtype,
            disable_split_kv=True,
        )

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        pool = self._attention.pool
        return cast(torch.Tensor, self._wrapper.run(queries.contiguous(), (pool.keys(layer), pool.values(layer))))


def flat_mask(parts: Sequence[BatchPart]) -> np.ndarray:
    """Which keys of its conversation each row sees: for each part [rows, length] bool, one after the other, flat."""
    masks = []
    for part in parts:
        mask = np.ones((len(part.tokens), part.length), np.bool_)
        mask[:, part.prefix :] = part.seen()
        masks.append(mask.reshape(-1))
    return np.concatenate(masks)


def _offsets(counts: Sequence[int]) -> torch.Tensor:
    """Where each part begins, and the end; on the host, where FlashInfer plans."""
    return torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32))
