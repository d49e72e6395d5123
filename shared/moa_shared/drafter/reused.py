"""Target layer inference: the target's last N layers, run on the device (arXiv 2410.03804, N > 0).

State: for each layer the keys and values of the verified positions, computed in batches from the state that enters
the first of them, and behind those the predicted ones of the draft. Invariant: verified positions are one run from
`_first` to `_verified`; a run that starts later than 0 is computed without what lies before it, and again when the
back-fill is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from moa_shared.drafter.layers import attend, rotate
from moa_shared.errors import InternalError

if TYPE_CHECKING:
    from moa_shared.drafter.decoder import DraftDecoder

_BATCH = 512  # states a pass: products are at full speed, and the mask stays small for a prompt of any length


class ReusedLayers:
    """The reused layers' caches for one conversation."""

    def __init__(self, decoder: DraftDecoder) -> None:
        from moa_shared.drafter.state import RowBuffer

        config = decoder.config
        self._decoder = decoder
        if decoder.final_norm is None or len(decoder.reused) != config.reused_layers:
            raise InternalError(f"The drafter reuses {config.reused_layers} target layers, which were not loaded.")
        self._norm = decoder.final_norm
        self._caches = [
            RowBuffer(config.target_kv_heads, config.target_head_dim, decoder.embeddings.dtype) for _ in decoder.reused
        ]
        self._states: dict[int, torch.Tensor] = {}  # by position, until they are keys and values that stay
        self._first = 0
        self._verified = 0

    def add(self, start: int, rows: torch.Tensor) -> None:
        for index in range(rows.shape[0]):
            if self._first > 0 or start + index >= self._verified:
                self._states[start + index] = rows[index]

    def crop(self, length: int) -> None:
        self.drop_predictions()
        self._states = {position: row for position, row in self._states.items() if position < length}
        self._verified = min(self._verified, length)
        if self._verified < self._first:
            self._first = self._verified
        for cache in self._caches:
            cache.crop(self._verified - self._first)

    def drop_predictions(self) -> None:
        for cache in self._caches:
            cache.crop(self._verified - self._first)

    def catch_up(self, most: int) -> int:
        """Turns states that have come into keys and values; the first position without them (at most `most`)."""
        self.drop_predictions()
        states = self._states
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
        if stop > self._verified:
            self._compute(self._verified, stop)
        if self._first == 0:  # a run from the very beginning is final
            self._states = {position: row for position, row in states.items() if position >= self._verified}
        return self._verified

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
            cos, sin = self._decoder.rotary(torch.tensor(positions), x.dtype)
            self._run(x, cos, sin, None, need_output=False)
        self._verified = stop

    def run(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        """Post-norm features of predicted rows, which stay in the caches until the draft is dropped."""
        out: torch.Tensor = self._norm(self._run(x, cos, sin, visible, need_output=True))
        return out

    def _run(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, visible: torch.Tensor | None, *, need_output: bool
    ) -> torch.Tensor:
        rows = x.shape[0]
        for index, (module, cache) in enumerate(zip(self._decoder.reused, self._caches, strict=True)):
            layer: Any = module
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            shape = (rows, -1, self._decoder.config.target_head_dim)
            keys = attention.k_proj(normed).view(shape)
            keys = attention.k_norm(keys) if hasattr(attention, "k_norm") else keys
            before = cache.length
            values = attention.v_proj(normed).view(shape).transpose(0, 1)
            cache.append((rotate(keys.transpose(0, 1), cos, sin), values))
            if not need_output and index == len(self._caches) - 1:
                return x
            queries = attention.q_proj(normed).view(shape)
            queries = attention.q_norm(queries) if hasattr(attention, "q_norm") else queries
            mask: torch.Tensor | None = None
            if visible is not None:
                prefix = cache.length - visible.shape[1]
                mask = torch.cat((torch.ones(rows, prefix, dtype=torch.bool), visible), dim=1)
            elif rows > 1:
                mask = torch.ones(rows, cache.length, dtype=torch.bool).tril(before)
            attended = attend(rotate(queries.transpose(0, 1), cos, sin), *cache.keys_values, mask)
            x = x + attention.o_proj(attended)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x
