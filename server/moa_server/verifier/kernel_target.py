"""A target over the kernels: quantised weights, rows that are exact in any tree and batch, no torch.

State: the network's weights. Invariant: a row's logits have the same bits by itself, in a tree, in a chunk and next to
other conversations, with any number of threads, on any processor that the kernels run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from moa_kernels import F16, PAGE_ROWS, Cache, Page, Segment
from moa_shared.errors import InternalError
from moa_shared.models.network.network import Network

from moa_server.verifier.target import KVCache, Request, Rows, Target, is_chain

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint import Checkpoint


class KernelCache(KVCache):
    def __init__(self, pages: Cache) -> None:
        super().__init__()
        self._pages = pages

    @property
    def pages(self) -> Cache:
        self._pages.length = self._length
        return self._pages

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes

    def most_nbytes(self, rows: int) -> int:
        return self._pages.most_nbytes(rows)

    def _free(self) -> None:
        self._pages.release()

    def reserve(self, rows: int) -> None:
        self.pages.reserve(rows)

    def crop(self, length: int) -> None:
        super().crop(length)
        self._pages.crop(self._length)

    def adopt(self, pages: Sequence[Page]) -> None:
        """Holds these full pages of another conversation that begins with the same tokens, and nothing else."""
        self._pages.adopt(pages)
        self._length = self._pages.length
        self._forget_tail()

    def segment(self, request: Request) -> Segment:
        if is_chain(request.parents):
            return Segment.chain(self.pages, len(request.tokens))
        return Segment.tree(self.pages, request.parents or ())

    def _move(self, source: Sequence[int], start: int) -> None:
        self.pages.keep_behind(start, [row - start for row in source])

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
        output = self.network.forward(tokens, segments, chosen, layers)
        return output.logits, output.hidden, output.states
