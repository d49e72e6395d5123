"""What one conversation's baseline drafter holds: tokens, the target's features as far as they came, and caches.

A row stands for a token; EAGLE-2's row takes the feature of the token before, so that its first row is that of the
second token. Features that have not come are the drafter's own predictions at the end of the text, and zeros before
the newest that came. Invariant: rows of an abandoned draft are in no cache; rows behind `_true` are made again when
their features come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from moa_shared.drafter.baseline import BaselineDecoder
from moa_shared.drafter.draft_nodes import DraftNodes
from moa_shared.drafter.inference_layer import Visibility
from moa_shared.drafter.row_buffer import RowBuffer
from moa_shared.errors import InternalError, ProtocolError

Rows = npt.NDArray[np.float32]

_BATCH = 512  # rows a pass: bounds the mask


class BaselineState:
    """One conversation of one `BaselineDecoder`; has what `DraftState` has."""

    def __init__(self, decoder: BaselineDecoder) -> None:
        self.decoder = decoder
        self.tokens: list[int] = []
        self._offset = 1 if decoder.reads_features else 0  # row r stands for token r + offset
        self._caches = [RowBuffer(layer.kv_heads, layer.head_dim, decoder.dtype) for layer in decoder.layers]
        self._features: dict[int, torch.Tensor] = {}
        self._outputs: list[torch.Tensor] = []  # of the committed tokens' rows, [hidden size] each
        self._true = 0  # rows before this one were made of features that came
        self._nodes = DraftNodes()
        self._node_outputs: list[torch.Tensor] = []
        self._drafting = False

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
        return len(self._features)

    # ------------------------------------------------------------ what the server said

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens; the next draft must `begin`."""
        self.tokens.extend(tokens)
        self._drop_draft()

    def crop(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        self._features = {position: row for position, row in self._features.items() if position < length}
        self._drop_draft()
        self._keep_rows(max(0, length - self._offset))

    def append_memory(self, start: int, rows: Rows) -> None:
        """Takes in the target's last hidden states, [rows, hidden size] float32, of positions from `start`.

        Raises:
            ProtocolError: rows of another width.
        """
        if not self.decoder.reads_features:
            return
        if rows.shape[-1] != self.decoder.config.memory_width:
            raise ProtocolError(f"memory rows of {self.decoder.config.memory_width} numbers", f"{rows.shape[-1]}")
        for index, row in enumerate(torch.from_numpy(rows).to(self.decoder.dtype)):
            self._features.setdefault(start + index, row)

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Baselines reuse no layers."""

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
        rows = len(self.tokens) - self._offset
        true, known = rows, rows
        if self.decoder.reads_features:
            true = self._true
            while true < rows and true in self._features:
                true += 1
            if true > self._true:
                self._keep_rows(self._true)
            known = min(rows, max(self._features, default=rows - 1) + 1)
        for start in range(len(self._outputs), known, _BATCH):
            self._read(start, min(start + _BATCH, known))
        for row in range(len(self._outputs), rows):
            self._read(row, row + 1)
        self._true = true
        self._drafting = True
        return self._logits(self._newest()[None])

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Adds draft nodes (parents: node numbers, -1 the root); [nodes, draft vocab] logits after each.

        Raises:
            InternalError: no draft is under way.
        """
        if not self._drafting:
            raise InternalError("Draft nodes were added before a draft was begun.")
        logits = []
        while tokens:  # a node takes its parent's output: those whose parents are among the new ones come after them
            known = len(self._nodes)
            now = next((place for place, parent in enumerate(parents) if parent >= known), len(tokens))
            logits.append(self._expand(tokens[:now], parents[:now]))
            tokens, parents = tokens[now:], parents[now:]
        return np.concatenate(logits)

    def _expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        nodes, known = self._nodes, len(self._nodes)
        nodes.add(tokens, parents)
        newest = self._newest()
        above = torch.stack([newest if parent < 0 else self._node_outputs[parent] for parent in parents])
        root = len(self._outputs) - 1
        if nodes.is_chain:
            visible = Visibility.of_run(len(tokens), self.decoder.dtype)
        else:
            visible = Visibility(torch.from_numpy(nodes.visible(known)), self.decoder.dtype)
        out = self._run(tokens, above, torch.tensor([root + depth for depth in nodes.depths[known:]]), visible)
        self._node_outputs += list(out)
        return self._logits(out)

    # ------------------------------------------------------------ inside

    def _logits(self, x: torch.Tensor) -> Rows:
        logits: Rows = self.decoder.logits(x).float().numpy()
        return logits

    def _newest(self) -> torch.Tensor:
        """The newest committed token's output; zeros before the first row."""
        if self._outputs:
            return self._outputs[-1]
        return torch.zeros(self.decoder.config.hidden_size, dtype=self.decoder.dtype)

    def _read(self, start: int, stop: int) -> None:
        """Makes the rows of committed tokens."""
        features = None
        if self.decoder.reads_features:
            tail = self._newest() if stop == start + 1 else torch.zeros_like(self._newest())
            features = torch.stack([self._features.get(row, tail) for row in range(start, stop)])
        tokens = self.tokens[start + self._offset : stop + self._offset]
        visible = Visibility.of_run(stop - start, self.decoder.dtype)
        self._outputs += list(self._run(tokens, features, range(start, stop), visible))

    def _run(
        self,
        tokens: Sequence[int],
        features: torch.Tensor | None,
        positions: range | torch.Tensor,
        visible: Visibility,
    ) -> torch.Tensor:
        x = self.decoder.inputs(tokens, features)
        angles = self.decoder.angles(positions)
        for layer, cache in zip(self.decoder.layers, self._caches, strict=True):
            queries, keys_values = layer.project(x, angles)
            cache.append(keys_values)
            x = layer.attend(x, queries, cache.keys_values, visible)
        return self.decoder.features(x)

    def _keep_rows(self, rows: int) -> None:
        """Drops the committed tokens' rows from `rows` on."""
        del self._outputs[rows:]
        self._true = min(self._true, rows)
        for cache in self._caches:
            cache.crop(len(self._outputs))

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._node_outputs.clear()
        for cache in self._caches:
            cache.crop(len(self._outputs))
