"""What one conversation's drafter holds: tokens read, memory received, and the draft under way.

Owned by the inference thread. Self-attention covers every committed token; cross-attention whatever memory rows have
come, in whatever order (keys carry their own position); reused layers the target's own state as far as it has come,
predictions beyond. Invariant: between `begin` calls nothing of an abandoned draft is left in any cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from moa_shared.drafter.decoder import DraftDecoder, KeyValues
from moa_shared.drafter.reused import ReusedLayers
from moa_shared.errors import InternalError, ProtocolError


class RowBuffer:
    """Keys and values that grow at the end, [kv heads, rows, head_dim] each, doubling in place."""

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, capacity: int = 256) -> None:
        self._buffer = torch.empty(2, kv_heads, capacity, head_dim, dtype=dtype)
        self.length = 0

    def append(self, keys_values: KeyValues) -> None:
        stop = self.length + keys_values[0].shape[-2]
        if stop > self._buffer.shape[2]:
            grown = self._buffer.new_empty(2, self._buffer.shape[1], 2 * stop, self._buffer.shape[3])
            grown[:, :, : self.length] = self._buffer[:, :, : self.length]
            self._buffer = grown
        for part, rows in enumerate(keys_values):
            self._buffer[part, :, self.length : stop] = rows
        self.length = stop

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only the rows where the mask [length] is True."""
        kept = self._buffer[:, :, : self.length][:, :, rows]
        self.length = kept.shape[2]
        self._buffer[:, :, : self.length] = kept

    @property
    def keys_values(self) -> KeyValues:
        return self._buffer[0, :, : self.length], self._buffer[1, :, : self.length]


class DraftState:
    """One conversation of one `DraftDecoder`."""

    def __init__(self, decoder: DraftDecoder) -> None:
        config = decoder.config
        self.decoder = decoder
        self.tokens: list[int] = []
        dtype = decoder.embeddings.dtype
        self._self = RowBuffer(config.sa_kv_heads, config.target_head_dim, dtype)
        self._memory = RowBuffer(config.ca_kv_heads, config.target_head_dim, dtype)
        self._memory_positions: list[int] = []
        self._reused = ReusedLayers(decoder) if config.reused_layers else None
        self._read = 0  # committed tokens in the self-attention cache
        self._root = 0  # position of the newest committed token while a draft is under way
        self._depths: list[int] = []
        self._seen = np.zeros((0, 0), dtype=np.bool_)

    # ------------------------------------------------------------ what the server said

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens."""
        self.tokens.extend(tokens)

    def crop(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        self._drop_draft()
        self._self.crop(length)
        self._read = min(self._read, length)
        kept = [position < length for position in self._memory_positions]
        if not all(kept):
            self._memory.keep(torch.tensor(kept))
            self._memory_positions = [position for position in self._memory_positions if position < length]
        if self._reused is not None:
            self._reused.crop(length)

    def append_memory(self, start: int, rows: torch.Tensor) -> None:
        """Takes in memory rows, [rows, memory width], of positions from `start`; rows held already are skipped.

        Raises:
            ProtocolError: rows of another width.
        """
        width = self.decoder.config.memory_width
        if rows.shape[-1] != width:
            raise ProtocolError(f"memory rows of {width} numbers", f"{rows.shape[-1]}")
        held = set(self._memory_positions)
        new = [index for index in range(rows.shape[0]) if start + index not in held]
        if not new:
            return
        positions = torch.tensor([start + index for index in new])
        dtype = self.decoder.embeddings.dtype
        with torch.inference_mode():
            self._memory.append(self.decoder.memory_keys_values(rows[new].to(dtype), positions))
        self._memory_positions += positions.tolist()

    def append_reused_state(self, start: int, rows: torch.Tensor) -> None:
        """Takes in the state that enters the first reused layer, [rows, hidden size].

        Raises:
            ProtocolError: rows of another width.
        """
        if self._reused is None:
            return
        if rows.shape[-1] != self.decoder.config.hidden_size:
            raise ProtocolError(f"state rows of {self.decoder.config.hidden_size} numbers", f"{rows.shape[-1]}")
        self._reused.add(start, rows.to(self.decoder.embeddings.dtype))

    @property
    def token_ids(self) -> torch.Tensor | None:
        """The target's token of each column of the logits; None: the same."""
        return self.decoder.draft_ids

    @property
    def next_position(self) -> int:
        """Position of the first token to guess."""
        return len(self.tokens)

    @property
    def memory_rows(self) -> int:
        return len(self._memory_positions)

    # ------------------------------------------------------------ drafting

    @torch.inference_mode()
    def begin(self) -> torch.Tensor:
        """Starts a draft below the newest committed token: [1, draft vocab] logits of the token after it.

        Raises:
            InternalError: there is no token yet.
        """
        if not self.tokens:
            raise InternalError("A draft was begun before there was any token.")
        self._drop_draft()
        length = len(self.tokens)
        self._self_cache(torch.tensor(self.tokens[self._read :], dtype=torch.long), torch.arange(self._read, length))
        self._read = length
        self._root = length - 1
        # Only from here on is anything predicted: of the tokens before, self-attention needs keys and values alone.
        first = self._root if self._reused is None else self._reused.catch_up(self._root)
        hidden = self._features(torch.tensor(self.tokens[first:]), torch.arange(first, length), None)
        return self.decoder.logits(hidden[-1:])

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Adds draft nodes and gives the logits after each, [nodes, draft vocab].

        Args:
            parents: node numbers (in order of addition since `begin`), -1 for the newest committed token.
        """
        known = len(self._depths)
        total = known + len(tokens)
        seen = np.zeros((total, total), dtype=np.bool_)
        seen[:known, :known] = self._seen
        for index, parent in enumerate(parents):
            node = known + index
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = True
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        self._seen = seen
        positions = torch.tensor([self._root + depth for depth in self._depths[known:]])
        chain = len(tokens) == 1 and bool(seen[known].all())
        visible = None if chain else torch.from_numpy(seen[known:])
        new = torch.tensor(tokens)
        self._self_cache(new, positions)
        return self.decoder.logits(self._features(new, positions, visible))

    def _self_cache(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        """Appends these tokens' keys and values of self-attention."""
        if len(tokens):
            x = self.decoder.embed(tokens)
            self._self.append(self.decoder.self_keys_values(x, *self.decoder.rotary(positions, x.dtype)))

    def _features(self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        """Features of the newest rows of the self-attention cache. `visible` [rows, draft nodes]: who sees whom among
        the draft; None: each row sees all rows before it.
        """
        decoder = self.decoder
        x = decoder.embed(tokens)
        cos, sin = decoder.rotary(positions, x.dtype)
        rows, columns = len(tokens), self._self.length
        mask: torch.Tensor | None = None
        if visible is not None:
            mask = torch.cat((torch.ones(rows, columns - visible.shape[1], dtype=torch.bool), visible), dim=1)
        elif rows > 1:
            mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        x = decoder.self_attend(x, self._self.keys_values, mask, cos, sin)
        unscaled = decoder.config.unscaled_memory_rope
        x = decoder.cross_attend(
            x, self._memory.keys_values, *(decoder.memory_rotary(positions, x.dtype) if unscaled else (cos, sin))
        )
        if self._reused is None:
            return decoder.features(x)
        return self._reused.run(x, cos, sin, visible)

    def _drop_draft(self) -> None:
        if self._depths:
            self._depths = []
            self._seen = np.zeros((0, 0), dtype=np.bool_)
        self._self.crop(self._read)
        if self._reused is not None:
            self._reused.drop_predictions()
