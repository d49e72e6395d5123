"""A target without weights: it has the sizes of one, for plans, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from moa_kernels import PAGE_ROWS
from moa_shared.errors import InternalError

from moa_server.target.cache import KVCache
from moa_server.target.target import Request, Rows, Target, TargetOutput, TargetShape

if TYPE_CHECKING:
    from moa_shared.drafter import Checkpoint

NUMBER_BYTES = {"int8": 2, "bf16": 2, "float32": 4}  # of a key or value, on each level


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
    """

    def __init__(self, config: Mapping[str, Any], level: str, context_length: int | None = None) -> None:
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
        self.page_nbytes = 2 * self.layer_count * self.kv_heads * self.head_dim * PAGE_ROWS * NUMBER_BYTES[level]

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
