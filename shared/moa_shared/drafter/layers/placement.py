"""Where the new rows of a pass go and what they see, defined once for all caches that they enter.

Self-attention and the reused layers hold the same draft after different numbers of rows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from moa_kernels import Cache, Segment

from moa_shared.drafter.draft_nodes import DraftNodes

Placement = Callable[[Cache], Segment]  # the rows as they follow what this cache holds

_BATCH = 512  # rows per pass: bounds what a forward holds


def batches(start: int, stop: int) -> Iterator[range]:
    """The positions `start` to `stop` - 1 in passes of bounded size."""
    for first in range(start, stop, _BATCH):
        yield range(first, min(first + _BATCH, stop))


def run_of_text(positions: range) -> Placement:
    """Rows that follow one another after all that is held."""
    return lambda cache: Segment.chain(cache, len(positions), positions.start)


def draft_rows(nodes: DraftNodes, known: int, root: int) -> Placement:
    """The draft nodes from `known` on; those before are the last rows held.

    Args:
        root: the position of the newest committed token.
    """
    if nodes.is_chain:
        return run_of_text(range(root + 1 + known, root + 1 + len(nodes)))
    visible = nodes.visible(known)
    positions = np.array(nodes.depths[known:], np.int32) + np.int32(root)

    def place(cache: Cache) -> Segment:
        before = np.int32(cache.length - known)
        seen, tail = visible.seen + before, visible.tail + before
        return Segment(cache, cache.length, positions, seen, visible.tail_start, tail)

    return place
