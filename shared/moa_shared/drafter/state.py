"""What one conversation's drafter holds: tokens read, memory received, and the draft under way.

Owned by the inference thread. Self-attention covers every committed token; cross-attention whatever memory rows have
come, in whatever order (keys carry their own position); reused layers the target's own state as far as it has come,
predictions beyond. Committed tokens that follow a draft re-root it: what was computed of it stays as it was computed,
later nodes see the memory that has come since. Invariant: rows of an abandoned draft are in no cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.draft_nodes import DraftNodes
from moa_shared.drafter.reused import ReusedLayers
from moa_shared.drafter.row_buffer import RowBuffer
from moa_shared.errors import InternalError, ProtocolError

_BATCH = 512  # committed tokens a pass where their states are not known: bounds the mask


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
        self._nodes = DraftNodes()
        self._drafting = False

    # ------------------------------------------------------------ what the server said

    @torch.inference_mode()
    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """Appends committed tokens. Where the draft under way holds them, it goes on below the last of them.

        Returns:
            former numbers of the draft nodes that are left, which are 0, 1, ... now; None: the next draft must `begin`.
        """
        self.tokens.extend(tokens)
        if not self._drafting:
            return None
        nodes = len(self._nodes)
        advance = self._nodes.advance(tokens)
        rows = [*advance.path, *(advance.kept or ())]
        self._self.keep_behind(self._read, rows)  # a token's row there does not depend on what stood before it
        self._read += len(advance.path)
        if advance.kept is None:
            self._drop_draft()
        elif self._reused is not None:
            self._reused.re_root(nodes, rows)
        return advance.kept

    @torch.inference_mode()
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
        # Only from here on is anything predicted: of the tokens before, self-attention needs keys and values alone.
        first = length - 1 if self._reused is None else self._reused.catch_up(length - 1)
        hidden = torch.empty(0)
        for start in range(first, length, _BATCH):
            stop = min(start + _BATCH, length)
            hidden = self._features(torch.tensor(self.tokens[start:stop]), torch.arange(start, stop), None, stop)
        self._drafting = True
        return self.decoder.logits(hidden[-1:])

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Adds draft nodes and gives the logits after each, [nodes, draft vocab].

        Args:
            parents: node numbers (in order of addition since `begin`, or as `extend` has renumbered them), -1 for the
                newest committed token.

        Raises:
            InternalError: no draft is under way.
        """
        if not self._drafting:
            raise InternalError("Draft nodes were added before a draft was begun.")
        nodes, known = self._nodes, len(self._nodes)
        if self._reused is not None:
            self._reused.freshen(len(self.tokens) - 1)
        nodes.add(tokens, parents)
        positions = torch.tensor([len(self.tokens) - 1 + depth for depth in nodes.depths[known:]])
        visible = None if nodes.is_chain else torch.from_numpy(nodes.visible(known))
        new = torch.tensor(tokens)
        self._self_cache(new, positions)
        return self.decoder.logits(self._features(new, positions, visible, self._self.length))

    def _self_cache(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        """Appends these tokens' keys and values of self-attention."""
        if len(tokens):
            x = self.decoder.embed(tokens)
            self._self.append(self.decoder.self_keys_values(x, *self.decoder.rotary(positions, x.dtype)))

    def _features(
        self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None, columns: int
    ) -> torch.Tensor:
        """Features of the last rows of the first `columns` rows of the self-attention cache.

        Args:
            visible: [rows, draft nodes], who sees whom among the draft; None: each row sees all rows before it.
        """
        decoder = self.decoder
        x = decoder.embed(tokens)
        cos, sin = decoder.rotary(positions, x.dtype)
        rows = len(tokens)
        mask: torch.Tensor | None = None
        if visible is not None:
            mask = torch.cat((torch.ones(rows, columns - visible.shape[1], dtype=torch.bool), visible), dim=1)
        elif rows > 1:
            mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        x = decoder.self_attend(x, self._self.before(columns), mask, cos, sin)
        unscaled = decoder.config.unscaled_memory_rope
        x = decoder.cross_attend(
            x, self._memory.keys_values, *(decoder.memory_rotary(positions, x.dtype) if unscaled else (cos, sin))
        )
        if self._reused is None:
            return decoder.features(x)
        return self._reused.run(x, cos, sin, visible)

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._self.crop(self._read)
        if self._reused is not None:
            self._reused.drop_predictions()
