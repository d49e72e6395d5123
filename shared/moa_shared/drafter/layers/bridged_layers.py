"""Reused layers whose states come from an earlier layer of the target: a bridge of layers computes them on the device.

So two drafters that reuse different layers need the states of one only, those of the deeper. State: states that have
come and are not across, and the bridge's keys and values. Invariant: what is across is one run from position 0.
"""

from __future__ import annotations

import numpy as np
from moa_kernels import Segment, Stack

from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.placement import batches
from moa_shared.drafter.layers.reused_layers import ReusedLayers


class BridgedLayers(ReusedLayers):
    """The reused layers behind a bridge.

    Args:
        bridge: the target's layers from the one that the states enter to the first reused one.
    """

    def __init__(self, stack: Stack, bridge: Stack, *, kv: str) -> None:
        super().__init__(stack, kv=kv)
        self._bridge = bridge
        self._bridge_cache = bridge.new_cache(kv=kv)
        self._arrived: dict[int, Rows] = {}  # by position

    def add(self, start: int, rows: Rows) -> None:
        """Adds states that enter the bridge; they cross it when they are needed."""
        for position, row in enumerate(rows, start):
            if position >= self._bridge_cache.length:
                self._arrived.setdefault(position, row)

    def crop(self, length: int) -> None:
        super().crop(length)
        self._arrived = {position: row for position, row in self._arrived.items() if position < length}
        self._bridge_cache.crop(min(length, self._bridge_cache.length))

    def catch_up(self, most: int) -> int:
        self._cross()
        return super().catch_up(most)

    def freshen(self, most: int) -> None:
        self._cross()
        super().freshen(most)

    def _cross(self) -> None:
        """Computes the states that follow those across without a gap."""
        cache = self._bridge_cache
        stop = cache.length
        while stop in self._arrived:
            stop += 1
        for positions in batches(cache.length, stop):
            rows = np.stack([self._arrived.pop(position) for position in positions])
            across, _ = self._bridge.run(rows, [Segment.chain(cache, len(rows))])
            cache.length += len(rows)
            super().add(positions.start, across)
