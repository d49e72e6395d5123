"""Attention by FlexAttention, which comes with torch: one kernel over the pages of all conversations.

A block mask names the pages that each block of rows reads, in the order of their conversations; a function says which
keys in them a row sees. On CUDA the kernel is compiled at the first forward. Elsewhere torch computes the same from the
function alone, over the whole pool: slowly, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from moa_server.verifier.paged.attention import PLAIN, Attention, AttentionPlan, AttentionShape
from moa_server.verifier.paged.batch import PAGE_ROWS, Batch
from moa_server.verifier.paged.device_tensors import DeviceTensors
from moa_server.verifier.paged.pool import PagePool

BLOCK_ROWS = 64
# The kernel that adds up a row's keys in one order, however many rows there are: the one for few rows splits them.
KERNEL = {"BLOCK_M": BLOCK_ROWS, "BLOCK_N": PAGE_ROWS, "FORCE_USE_FLEX_ATTENTION": True}


class FlexAttention(Attention):
    """FlexAttention over the pool."""

    name = "FlexAttention"

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        super().__init__(pool, heads, shape)
        pool.tensor.zero_()  # what a row does not see is multiplied by 0: it must be numbers

    def new_plan(self, rows: int = 0, pages: int = 0) -> AttentionPlan:
        return FlexPlan(self.pool, fixed=rows > 0)


class FlexPlan(AttentionPlan):
    """The block mask of a batch."""

    def __init__(self, pool: PagePool, *, fixed: bool) -> None:
        self._pool = pool
        self._tensors = DeviceTensors(pool.tensor.device, fixed=fixed)

    def load(self, batch: Batch) -> None:
        arrays = mask_arrays(batch, self._pool.count)
        tensors = {name: self._tensors.put(name, array) for name, array in arrays.items()}
        self._mask = BlockMask.from_kv_blocks(
            tensors.pop("page_counts"),
            tensors.pop("page_lists"),
            BLOCK_SIZE=(BLOCK_ROWS, PAGE_ROWS),
            mask_mod=sees(**tensors),
            seq_lengths=(batch.rows, self._pool.count * PAGE_ROWS),
            compute_q_blocks=False,
        )

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values = (
            pages.flatten(0, 1).transpose(0, 1)[None] for pages in (self._pool.keys(layer), self._pool.values(layer))
        )
        rows = queries.transpose(0, 1)[None]
        output = _kernel(queries.device.type)(
            rows, keys, values, block_mask=self._mask, enable_gqa=True, kernel_options=KERNEL
        )
        return cast(torch.Tensor, output)[0].transpose(0, 1)


def mask_arrays(batch: Batch, pages: int) -> dict[str, np.ndarray]:
    """The arguments of `sees`, and for each block of rows how many pages it reads and which.

    Args:
        pages: of the pool.
    """
    firsts = batch.firsts
    sizes = np.diff(firsts)
    blocks = -(-batch.rows // BLOCK_ROWS)
    counts, lists = np.zeros((1, 1, blocks), np.int32), np.zeros((1, 1, blocks, pages), np.int32)
    owner, place = np.full(pages, -1, np.int32), np.zeros(pages, np.int32)
    tails = np.zeros((batch.rows, batch.rows), np.bool_)
    listed: set[tuple[int, int]] = set()
    for part, first, last in zip(batch.parts, firsts, firsts[1:], strict=False):
        used = np.asarray(part.used_pages(), np.int32)
        owner[used], place[used] = used[0], np.arange(len(used))
        tails[first:last, first:last] = part.seen()
        for block in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
            if (block, part.pages[0]) not in listed:  # rows that fill a batch share a page
                listed.add((block, part.pages[0]))
                count = int(counts[0, 0, block])
                lists[0, 0, block, count : count + len(used)] = used
                counts[0, 0, block] += len(used)
    of_rows = {
        "mine": [part.pages[0] for part in batch.parts],
        "first": firsts[:-1],
        "size": sizes,
        "prefix": [part.prefix for part in batch.parts],
    }
    return {
        "page_counts": counts,
        "page_lists": lists,
        "owner": owner,
        "place": place,
        "tails": tails,
        **{name: np.repeat(np.asarray(values, np.int32), sizes) for name, values in of_rows.items()},
    }


def sees(
    owner: torch.Tensor,
    place: torch.Tensor,
    tails: torch.Tensor,
    mine: torch.Tensor,
    first: torch.Tensor,
    size: torch.Tensor,
    prefix: torch.Tensor,
) -> Callable[..., torch.Tensor]:
    """The function that says whether a row sees a key; a conversation is named by its first page.

    Args:
        owner: [pages] the conversation that each page belongs to; `place`: which of its pages it is.
        tails: [rows, rows] which of the new rows each of them sees.
        mine: [rows] the conversation of each row; `first`: its first row here; `size`: its rows here; `prefix`: those
            that it held before.
    """

    def row_sees_key(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        page = key // PAGE_ROWS
        behind = place[page] * PAGE_ROWS + key % PAGE_ROWS - prefix[row]  # the prefix
        in_tail = (behind >= 0) & (behind < size[row])
        new = torch.where(in_tail, first[row] + behind, 0)
        return (owner[page] == mine[row]) & ((behind < 0) | (in_tail & tails[row, new]))

    return row_sees_key


@cache
def _kernel(device: str) -> Callable[..., Any]:
    return cast(Callable[..., Any], torch.compile(flex_attention) if device == "cuda" else flex_attention)
