"""The state of one conversation's block drafter: tokens, the context rows that have come, and the blocks of its draft.

One forward guesses a whole block below the newest token, without knowing what stands in it: what follows a node depends
on its depth alone (DFlash), or on its depth and its token (DSpark). So only the first level of a draft takes a forward.
A text that goes on below a block, as a device writes it without a server, begins another one at its last token.
Invariants: the cache holds context rows and nothing else; each key carries its own position, so rows may come in any
order, and those that are missing are not seen. A block sees rows of positions before its first token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moa_shared.drafter.base_state import BaseState
from moa_shared.drafter.dflash.decoder import BlockDecoder
from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.memory_cache import MemoryCache
from moa_shared.tree.arithmetic import ROOT


class BlockState(BaseState):
    """One conversation of one `BlockDecoder`; has the interface of `DraftState`."""

    def __init__(self, decoder: BlockDecoder) -> None:
        super().__init__(decoder.draft_ids)
        self.decoder = decoder
        self._context = MemoryCache(decoder.new_cache(), decoder.config.memory_width, decoder.remember)
        self._anchors: list[int] = []  # of each node: the one whose token its block begins with
        self._blocks: dict[int, Rows] = {}  # by that node: logits, [block levels, draft vocab]

    @property
    def most_depth(self) -> int:
        """The levels that come with the first one."""
        return self.decoder.config.block_levels

    @property
    def memory_rows(self) -> int:
        return len(self._context)

    # ------------------------------------------------------------ what the server said

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens; the next draft must `begin`.

        What is left of a block below them has been given out already, and knows less than a block that begins at the
        newest token: its rows have not seen these tokens (docs/adr/0057-block-drafts.md).
        """
        self.tokens.extend(tokens)
        self._drop_draft()

    def crop(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        self._drop_draft()
        self._context.crop(length)

    def append_memory(self, start: int, rows: Rows) -> None:
        """Adds context rows, [rows, hidden size] float32, of positions from `start`; rows already held are skipped.

        Raises:
            ProtocolError: rows of another width.
        """
        self._context.append(start, rows)

    # ------------------------------------------------------------ drafting

    def begin(self) -> Rows:
        """Starts a draft below the newest committed token: [1, draft vocab] logits of the token after it.

        Raises:
            InternalError: there is no token yet.
        """
        self._check_begin()
        self._drop_draft()
        self._drafting = True
        return self._corrected(self._block(ROOT)[:1], self.tokens[-1:])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Adds draft nodes and returns the logits after each, [nodes, draft vocab].

        Args:
            parents: node numbers in order of addition since `begin`, -1 for the newest committed token.

        Raises:
            InternalError: no draft is under way, or no nodes.
        """
        self._check_expand(tokens)
        known = len(self._nodes)
        self._nodes.add(tokens, parents)
        rows = []
        for node, parent in enumerate(parents, known):
            level = self._nodes.depths[node] % self.most_depth
            within = ROOT if parent == ROOT else self._anchors[parent]
            self._anchors.append(within if level else node)
            rows.append(self._block(self._anchors[node])[level])
        return self._corrected(np.stack(rows), tokens)

    def _corrected(self, logits: Rows, tokens: Sequence[int]) -> Rows:
        """Logits with what the tokens before them say, [rows, draft vocab]."""
        correction = self.decoder.correction(tokens)
        return logits if correction is None else logits + correction

    def _block(self, anchor: int) -> Rows:
        """Made again if it has been forgotten: the first and the newest are kept, which is all that a text needs."""
        if anchor not in self._blocks:
            self._blocks = {ROOT: self._blocks[ROOT]} if self._blocks else {}
            root, decoder = len(self.tokens) - 1, self.decoder
            token = self.tokens[-1] if anchor == ROOT else self._nodes.tokens[anchor]
            position = root if anchor == ROOT else root + self._nodes.depths[anchor]
            unseen = self._context.rows_from(position)  # the newest token's may have come
            self._blocks[anchor] = decoder.logits(decoder.block(self._context.cache, token, position, unseen))
        return self._blocks[anchor]

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._anchors.clear()
        self._blocks.clear()
