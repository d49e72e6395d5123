"""A target over the kernels: quantised weights, rows that are exact in any tree and batch, no torch.

State: the network's weights. Invariant: a row's logits have the same bits by itself, in a tree, in a chunk and next to
other conversations, with any number of threads, on any processor that the kernels run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from moa_kernels import F16, PAGE_ROWS, Cache, Page, Segment, Snapshot
from moa_shared.errors import InternalError
from moa_shared.models.checkpoints import leave_checkpoint, most_checkpoints
from moa_shared.models.network.network import Network

from moa_server.verifier.target import KVCache, Request, Rows, Target, is_chain

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint import Checkpoint


class KernelCache(KVCache):
    def __init__(self, pages: Cache) -> None:
        super().__init__()
        self._pages = pages
        self.checkpoint_nbytes = pages.states.state_nbytes

    @property
    def pages(self) -> Cache:
        self._pages.length = self._length
        return self._pages

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes

    def most_nbytes(self, rows: int, drafted: int = 0) -> int:
        states = self._pages.states
        beside = most_checkpoints(rows) * states.state_nbytes + drafted * states.draft_nbytes
        return self._pages.most_nbytes(rows) + beside

    @property
    def page_nbytes(self) -> int:
        return self._pages.most_nbytes(PAGE_ROWS) - self.checkpoint_nbytes

    def _free(self) -> None:
        self._pages.release()

    def reserve(self, rows: int) -> None:
        self.pages.reserve(rows)

    def crop(self, length: int) -> int:
        pages = self.pages
        super().crop(min(length, self._length) if self.checkpoint_nbytes else length)  # what it has lost is no defect
        return self._set_length(pages.crop(self._length))

    def checkpoint(self) -> None:
        leave_checkpoint(self.pages)

    def adopt(self, pages: Sequence[Page], snapshot: Snapshot | None = None) -> None:
        """Holds these full pages of another conversation that begins with the same tokens, and nothing else.

        `snapshot`: of the recurrent states after them, where there are any.
        """
        self._pages.adopt(pages, snapshot)
        self._set_length(self._pages.length)

    def segment(self, request: Request) -> Segment:
        if is_chain(request.parents):
            return Segment.chain(self.pages, len(request.tokens), drafted=request.drafts)
        return Segment.tree(self.pages, request.parents or (), drafted=request.drafts)

    def _set_length(self, length: int) -> int:
        self._length = length
        self._forget_tail()
        return length

    def _keep(self, start: int, rows: Sequence[int]) -> None:
        self.pages.keep_behind(start, rows)

    def _read(self, start: int, stop: int) -> Rows:
        return self.pages.read(start, stop)

    def read_layers(self, layers: Sequence[int], start: int, stop: int) -> Rows:
        return np.concatenate([self.pages.read(start, stop, layer)[:, 0] for layer in layers], axis=-1)


class KernelTarget(Target):
    """The verifier on the level int8. `kv`: how keys and values are kept: one of `moa_kernels.KV_FORMATS`."""

    def __init__(
        self, network: Network, trained_length: int, context_length: int | None = None, *, kv: str = F16
    ) -> None:
        super().__init__(network.vocab_size, network.hidden_size, network.layer_count, trained_length, context_length)
        self.network = network
        self.page_tokens = PAGE_ROWS if network.stack.compiled else 0
        self.checkpoint_tokens = PAGE_ROWS if network.stack.states else 0
        self._kv = kv

    def new_cache(self) -> KernelCache:
        return KernelCache(self.network.new_cache(kv=self._kv))

    def normed(self, state: Rows) -> Rows:
        return self.network.normed(state)

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return drafter.rows()

    def _run(
        self, requests: Sequence[Request], depths: Sequence[Sequence[int]], chosen: list[int], layers: list[int]
    ) -> tuple[Rows, Rows, Mapping[int, Rows]]:
        segments = []
        for request in requests:
            if not isinstance(request.cache, KernelCache):
                raise InternalError("A forward of the kernels was given another backend's cache.")
            segments.append(request.cache.segment(request))
        tokens = [token for request in requests for token in request.tokens]
        return self.network.forward(tokens, segments, chosen, layers)
