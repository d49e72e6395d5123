"""Target layer inference: the target's last N layers, run on the device (arXiv 2410.03804, N > 0).

State: for each layer the keys and values of the verified positions, computed in batches from the state that enters
the first of them, and behind those the predicted ones: of committed tokens from `_predicted` on, then of draft nodes.
Invariant: verified positions are one run from `_first` to `_verified`; a run that starts later than 0 is computed
without what lies before it, and again when the back-fill is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from moa_shared.drafter.inference_layer import Angles, Visibility
from moa_shared.drafter.row_buffer import RowBuffer
from moa_shared.errors import InternalError

if TYPE_CHECKING:
    from moa_shared.drafter.decoder import DraftDecoder

_BATCH = 512  # states a pass: products are at full speed, and the mask stays small for a prompt of any length
_FEW = 32  # states that are computed together with the rows behind them: weights are read once instead of twice


class ReusedLayers:
    """The reused layers' caches for one conversation."""

    def __init__(self, decoder: DraftDecoder) -> None:
        config = decoder.config
        self._decoder = decoder
        if decoder.final_norm is None or len(decoder.reused) != config.reused_layers:
            raise InternalError(f"The drafter reuses {config.reused_layers} target layers, which were not loaded.")
        self._caches = [
            RowBuffer(config.target_kv_heads, config.target_head_dim, decoder.dtype) for _ in decoder.reused
        ]
        self._states: dict[int, torch.Tensor] = {}  # by position; a conversation may be cut back to any of them
        self._first = 0
        self._verified = 0
        self._predicted = 0
        self._waiting = range(0)  # verified positions that the next run computes with its own rows
        self._has_news = False  # states came since they were last looked at

    def add(self, start: int, rows: torch.Tensor) -> None:
        for index in range(rows.shape[0]):
            if start + index not in self._states:
                self._states[start + index] = rows[index]
                self._has_news = True

    def crop(self, length: int) -> None:
        self._states = {position: row for position, row in self._states.items() if position < length}
        self._cut(length)

    def _cut(self, length: int) -> None:
        """Drops predictions, and keys and values from position `length` on."""
        self._verified = min(self._verified, length)
        if self._verified < self._first:
            self._first = self._verified
        for cache in self._caches:
            cache.crop(self._verified - self._first)

    def drop_predictions(self) -> None:
        for cache in self._caches:
            cache.crop(self._verified - self._first)

    def catch_up(self, most: int) -> int:
        """Drops what is predicted and turns states that have come into keys and values; a few wait for the next `run`.

        Returns:
            the first position to predict, at most `most`.
        """
        self.drop_predictions()
        self._predicted = self._verify(most, with_predictions=True)
        return self._predicted

    def freshen(self, most: int) -> None:
        """Replaces predictions of positions before `most` whose states have come; those behind stay."""
        if not self._has_news or (self._first == 0 and self._verified >= most):
            return
        behind = self._verified - self._first
        predictions = [cache.take(behind) for cache in self._caches]
        known = self._verify(most)
        overtaken = max(0, known - self._predicted) if self._verified > self._first else 0
        for cache, rows in zip(self._caches, predictions, strict=True):
            cache.put(rows[:, :, overtaken:])
        self._predicted += overtaken

    def re_root(self, nodes: int, kept: Sequence[int]) -> None:
        """Of the newest `nodes` rows, a draft's, keeps only these."""
        for cache in self._caches:
            cache.keep_behind(cache.length - nodes, kept)

    def _verify(self, most: int, *, with_predictions: bool = False) -> int:
        """The first position before `most` without keys and values of its state; `most` where no state has come."""
        self._has_news = False
        states = self._states
        if self._verified > most:  # cut back to a token whose state is known: it is predicted from once more
            self._cut(most)
        if self._first > 0 and {0, self._first - 1} <= states.keys() and all(at in states for at in range(self._first)):
            self._rebuild()
        if self._verified == self._first:
            run = self._newest_run(most)
            if run is None:
                return most
            self._first = self._verified = run
        stop = self._verified
        while stop < most and stop in states:
            stop += 1
        if with_predictions and stop - self._verified <= _FEW:
            self._waiting = range(self._verified, stop)
            self._verified = stop
        elif stop > self._verified:
            self._compute(self._verified, stop)
        self._has_news = stop in states
        return stop

    def _newest_run(self, most: int) -> int | None:
        """First position of the newest run of states, which may end before `most` when drafting on old memory."""
        position = max((held for held in self._states if held < most), default=None)
        while position is not None and position - 1 in self._states:
            position -= 1
        return position

    def _rebuild(self) -> None:
        for cache in self._caches:
            cache.crop(0)
        self._first = self._verified = 0

    def _compute(self, start: int, stop: int) -> None:
        for first in range(start, stop, _BATCH):
            positions = range(first, min(first + _BATCH, stop))
            x = torch.stack([self._states[position] for position in positions])
            visible = Visibility.of_run(len(positions), x.dtype)
            self._run(x, self._decoder.angles(positions), visible, need_output=False)
        self._verified = stop

    def run(self, x: torch.Tensor, angles: Angles, visible: Visibility) -> torch.Tensor:
        """The last layer's output of predicted rows, which stay in the caches until the draft is dropped."""
        rows = x.shape[0]
        if self._waiting:
            positions = range(self._waiting.start, self._waiting.stop + rows)
            x = torch.cat((torch.stack([self._states[position] for position in self._waiting]), x))
            angles, visible = self._decoder.angles(positions), Visibility.of_run(len(positions), x.dtype)
            self._waiting = range(0)
        return self._run(x, angles, visible, need_output=True)[-rows:]

    def _run(self, x: torch.Tensor, angles: Angles, visible: Visibility, *, need_output: bool) -> torch.Tensor:
        for index, (layer, cache) in enumerate(zip(self._decoder.reused, self._caches, strict=True)):
            queries, keys_values = layer.project(x, angles)
            cache.append(keys_values)
            if need_output or index < len(self._caches) - 1:
                x = layer.attend(x, queries, cache.keys_values, visible)
        return x
