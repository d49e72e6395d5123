"""What one conversation's drafter holds: tokens read, memory received, and the draft under way.

Owned by the inference thread. Self-attention covers every committed token; cross-attention whatever memory rows have
come, in whatever order (keys carry their own position); reused layers the target's own state as far as it has come,
predictions beyond. Committed tokens that follow a draft re-root it: what was computed of it stays as it was computed,
later nodes see the memory that has come since. Invariant: rows of an abandoned draft are in no cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.draft_nodes import DraftNodes
from moa_shared.drafter.inference_layer import Visibility
from moa_shared.drafter.reused import ReusedLayers
from moa_shared.drafter.row_buffer import RowBuffer
from moa_shared.errors import InternalError, ProtocolError

Rows = npt.NDArray[np.float32]

_BATCH = 512  # committed tokens a pass: bounds the mask
_ALL = Visibility(None, torch.float32)


def _batches(start: int, stop: int) -> Iterator[range]:
    for first in range(start, stop, _BATCH):
        yield range(first, min(first + _BATCH, stop))


class DraftState:
    """One conversation of one `DraftDecoder`."""

    def __init__(self, decoder: DraftDecoder) -> None:
        config = decoder.config
        self.decoder = decoder
        self.tokens: list[int] = []
        dtype = decoder.dtype
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

    def append_memory(self, start: int, rows: Rows) -> None:
        """Takes in memory rows, [rows, memory width] float32, of positions from `start`; rows held already are skipped.

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
        with torch.inference_mode():
            self._memory.append(
                self.decoder.memory_keys_values(torch.from_numpy(rows[new]).to(self.decoder.dtype), positions)
            )
        self._memory_positions += positions.tolist()

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Takes in the state that enters the first reused layer, [rows, hidden size] float32.

        Raises:
            ProtocolError: rows of another width.
        """
        if self._reused is None:
            return
        if rows.shape[-1] != self.decoder.config.hidden_size:
            raise ProtocolError(f"state rows of {self.decoder.config.hidden_size} numbers", f"{rows.shape[-1]}")
        self._reused.add(start, torch.from_numpy(rows).to(self.decoder.dtype))

    @property
    def token_ids(self) -> npt.NDArray[np.int64] | None:
        """The target's token of each column of the logits; None: the same."""
        ids = self.decoder.draft_ids
        return None if ids is None else ids.numpy()

    @property
    def next_position(self) -> int:
        """Position of the first token to guess."""
        return len(self.tokens)

    @property
    def memory_rows(self) -> int:
        return len(self._memory_positions)

    # ------------------------------------------------------------ drafting

    @torch.inference_mode()
    def begin(self) -> Rows:
        """Starts a draft below the newest committed token: [1, draft vocab] logits of the token after it.

        Raises:
            InternalError: there is no token yet.
        """
        if not self.tokens:
            raise InternalError("A draft was begun before there was any token.")
        self._drop_draft()
        last = len(self.tokens) - 1
        # Only from here on is anything predicted: of the tokens before, self-attention needs keys and values alone.
        first = last if self._reused is None else self._reused.catch_up(last)
        self._self.crop(first)
        for positions in _batches(self._self.length, first):
            self._read_tokens(positions)
        x = torch.empty(0)
        for positions in _batches(first, last + 1):
            x = self._features(self._text(positions), positions, Visibility.of_run(len(positions), self.decoder.dtype))
        self._read = last + 1
        self._drafting = True
        return self._logits(x[-1:])

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
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
        dtype, root = self.decoder.dtype, len(self.tokens) - 1
        if nodes.is_chain:
            x = self._features(
                tokens, range(root + 1 + known, root + 1 + len(nodes)), Visibility.of_run(len(tokens), dtype)
            )
        else:
            visible = Visibility(torch.from_numpy(nodes.visible(known)), dtype)
            x = self._features(tokens, torch.tensor([root + depth for depth in nodes.depths[known:]]), visible)
        return self._logits(x)

    def _logits(self, x: torch.Tensor) -> Rows:
        logits: Rows = self.decoder.logits(self.decoder.features(x)).float().numpy()
        return logits

    def _text(self, positions: range) -> list[int]:
        return self.tokens[positions.start : positions.stop]

    def _read_tokens(self, positions: range) -> None:
        """Appends the self-attention's keys and values of committed tokens."""
        decoder = self.decoder
        x = decoder.embed(self._text(positions))
        self._self.append(decoder.self_attention.project(x, decoder.angles(positions))[1])

    def _features(self, tokens: Sequence[int], positions: range | torch.Tensor, visible: Visibility) -> torch.Tensor:
        """The last layer's output of new rows, which are appended to the caches."""
        decoder = self.decoder
        x = decoder.embed(tokens)
        angles = decoder.angles(positions)
        queries, keys_values = decoder.self_attention.project(x, angles)
        self._self.append(keys_values)
        x = decoder.self_attention.attend(x, queries, self._self.keys_values, visible)
        layer = decoder.cross_attention
        if self._memory.length:
            queries = layer.queries(x, decoder.memory_angles_like(angles, positions))
            x = layer.attend(x, queries, self._memory.keys_values, _ALL)
        else:  # without any memory row only the MLP acts
            x = layer.finish(x)
        return x if self._reused is None else self._reused.run(x, angles, visible)

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._self.crop(self._read)
        if self._reused is not None:
            self._reused.drop_predictions()
