"""A target that does what another one does, for those that add a wait or a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moa_server.verifier import Request, Target, TargetOutput

if TYPE_CHECKING:
    from moa_server.verifier.cache import KVCache
    from moa_server.verifier.target import Rows
    from moa_shared.drafter import Checkpoint


class WrappedTarget(Target):
    """Passes everything on to `inner`."""

    def __init__(self, inner: Target) -> None:
        super().__init__(inner.shape)
        self.page_tokens = inner.page_tokens
        self._inner = inner

    def kv_bytes(self) -> int:
        return self._inner.kv_bytes()

    def new_cache(self) -> KVCache:
        return self._inner.new_cache()

    def normed(self, state: Rows) -> Rows:
        return self._inner.normed(state)

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return self._inner.memory_rows(drafter)

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        return self._inner._run(requests, depths)
