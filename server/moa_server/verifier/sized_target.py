"""A target without weights: it has the sizes of one, for plans, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from moa_kernels import F16, PAGE_ROWS, Q8
from moa_shared.errors import InternalError
from moa_shared.models.network.layer_sizes import cached_heads
from moa_shared.protocol.levels import BF16, FLOAT32, INT8

from moa_server.verifier.cache import KVCache
from moa_server.verifier.target import Request, Rows, Target, TargetOutput, TargetShape

if TYPE_CHECKING:
    from moa_shared.drafter import Checkpoint

NUMBER_BYTES = {INT8: 2, BF16: 2, FLOAT32: 4}  # of a key or value, on each level, if they are not kept in 8 bits
SCALE_BYTES = 4  # of a row of a head in 8 bits


class SizedCache(KVCache):
    """A cache that holds nothing.

    Args:
        page_nbytes: of the keys and values of a page.
    """

    nbytes = 0

    def __init__(self, page_nbytes: int) -> None:
        super().__init__()
        self._page_nbytes = page_nbytes

    def most_nbytes(self, rows: int) -> int:
        return -(-rows // PAGE_ROWS) * self._page_nbytes

    def _free(self) -> None:
        raise _computes_nothing()

    def reserve(self, rows: int) -> None:
        raise _computes_nothing()

    def _move(self, source: Sequence[int], start: int) -> None:
        raise _computes_nothing()

    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        raise _computes_nothing()


class SizedTarget(Target):
    """The sizes of a target.

    Args:
        config: the content of its config.json.
        level: on which it is to be computed.
        context_length: the most positions of a conversation; None: what it was trained for.
        kv: how the level int8 keeps keys and values: one of `moa_kernels.KV_FORMATS`.
    """

    def __init__(
        self, config: Mapping[str, Any], level: str, context_length: int | None = None, *, kv: str = F16
    ) -> None:
        heads, trained = int(config["num_attention_heads"]), int(config["max_position_embeddings"])
        super().__init__(
            TargetShape(
                int(config["vocab_size"]),
                int(config["hidden_size"]),
                int(config["num_hidden_layers"]),
                int(config.get("num_key_value_heads") or heads),
                int(config.get("head_dim") or config["hidden_size"] // heads),
                trained if context_length is None else min(context_length, trained),
            )
        )
        self.page_nbytes = PAGE_ROWS * sum(
            2 * count * (dim + SCALE_BYTES if kv == Q8 else dim * NUMBER_BYTES[level])
            for count, dim in cached_heads(config)
        )

    def new_cache(self) -> SizedCache:
        return SizedCache(self.page_nbytes)

    def normed(self, state: Rows) -> Rows:
        raise _computes_nothing()

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        def rows(read: Rows) -> Rows:
            raise _computes_nothing()

        return rows

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        raise _computes_nothing()


def _computes_nothing() -> InternalError:
    return InternalError("A target without weights was asked to compute.")
