"""`Target`: what verifies chains and trees, one forward for the rows of several conversations, whatever computes it.

Arrays in and out are numpy's, float32. Invariants: for a path of a tree the result is that of the path by itself
(to the bit where the backend promises it); nothing is changed on an error.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared import tree
from moa_shared.errors import ContextLengthError, InternalError, TokenRangeError, TreeError
from moa_shared.programs.machine import free_memory_bytes

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint.checkpoint import Checkpoint


class KVCache(ABC):
    """Keys and values of one conversation; made by `Target.new_cache`."""

    def __init__(self) -> None:
        self._length = 0
        self._pending = 0  # rows that a forward is writing after `length`
        self._tail_start = 0
        self._tail_depths: tuple[int, ...] = ()  # of the last forward's rows, while they may be cut to a path
        self._tail_is_chain = True

    @property
    def length(self) -> int:
        """Rows held, the tail included."""
        return self._length

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the memory held (not only what is in use)."""

    @abstractmethod
    def most_nbytes(self, rows: int) -> int:
        """The most bytes that a cache takes while it grows to `rows` rows."""

    @abstractmethod
    def _free(self) -> None:
        """Give the memory of all rows back."""

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all, at once: a prompt of known length need not grow in steps."""

    @abstractmethod
    def _move(self, source: Sequence[int], start: int) -> None:
        """Copy the rows `source`, ascending and none before `start`, to `start` and following."""

    @abstractmethod
    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """[stop - start, layers, ...] float32: for each head in turn its rotated key and then its value.

        The layers are those with keys and values of their own; narrower ones have zeros behind their numbers.
        """

    def begin(self, count: int) -> None:
        """Make room for `count` rows after the last one; a forward calls this before it writes."""
        if not self._tail_is_chain:
            raise InternalError("The rows of a draft tree were not cut to a path before the next forward.")
        self.reserve(self._length + count)
        self._pending = count

    def end(self, depths: Sequence[int]) -> None:
        """Count the rows written since `begin` as held; `depths` are their depths in the tree, roots 0."""
        if len(depths) != self._pending:
            raise InternalError(f"{self._pending} rows were written, {len(depths)} are to be counted.")
        self._tail_start = self._length
        self._tail_depths = tuple(depths)
        self._tail_is_chain = all(depth == row for row, depth in enumerate(depths))
        self._length += self._pending
        self._pending = 0

    def keep(self, path: Sequence[int]) -> None:
        """Keep only `path` of the last forward's rows, moved together; nothing else is touched.

        `path`: rows of the last forward from a root downwards: depths 0, 1, 2... An empty path keeps none.
        """
        for depth, row in enumerate(path):
            if not 0 <= row < len(self._tail_depths) or self._tail_depths[row] != depth:
                raise TreeError(f"The rows {list(path)} are no path from the root of the last forward's tree.")
        moved = next((place for place, row in enumerate(path) if place != row), len(path))
        if moved < len(path):
            self._move([self._tail_start + row for row in path[moved:]], self._tail_start + moved)
        self._length = self._tail_start + len(path)
        self._forget_tail()

    def crop(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise InternalError(f"A cache of {self._length} rows cannot be cropped to {length}.")
        if not self._tail_is_chain and length > self._tail_start + 1:
            raise InternalError("A draft tree must be cut to a path, or dropped whole, before its rows are cropped.")
        self._length = length
        self._forget_tail()

    def release(self) -> None:
        self._length = 0
        self._forget_tail()
        self._free()

    def lsa_input(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The memory encoder's input for the rows `start..stop`.

        Returns:
            [stop - start, layers, KV width] float32; the last axis is, for each KV head in turn, its rotated key and
            then its value (the layout of arXiv 2410.03804's published code), and zeros in layers that are narrower than
            others. Layers that read the keys and values of others are left out. A copy of these rows only.
        """
        self._check_held(start, stop)
        return as_lsa_input(self._read(start, stop))

    def _check_held(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self._length:
            raise InternalError(f"Rows {start}..{stop} were requested from a cache of {self._length} rows.")

    def _forget_tail(self) -> None:
        self._tail_start, self._tail_depths, self._tail_is_chain = self._length, (), True


def as_lsa_input(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows as `KVCache._read` gives them, with one last axis as `KVCache.lsa_input` has it."""
    return rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))


Rows = npt.NDArray[np.float32]

# 1,500 tokens on one core in bf16: 1.67 s in chunks of 128, 1.29 s of 256, 1.21 s of 512, 1.16 s of 1024. Other
# sessions wait for a chunk, so the smallest that costs little.
PREFILL_CHUNK_TOKENS = 256
KV_SHARE = 0.75  # of what is free once the target is loaded; the rest is for text, frames and the forward itself


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """The result of one forward, in float32 whatever the model computes in.

    Attributes:
        logits: [rows asked, vocab].
        hidden: [rows asked, hidden_size] after the final norm.
        states: [tokens, hidden_size] entering each layer asked for.
    """

    logits: Rows
    hidden: Rows
    states: Mapping[int, Rows] = field(default_factory=dict)

    @property
    def state(self) -> Rows | None:
        """The state, where one layer's was asked for."""
        return next(iter(self.states.values()), None)


@dataclass(frozen=True, slots=True)
class Request:
    """One conversation's part of a forward.

    Args:
        tokens: to run after what the cache holds; their keys and values are the cache's new tail.
        parents: of each token within `tokens`, -1 for the last token of the cache; None for a chain.
        logits_for: the rows (of `tokens`) whose logits and hidden state are wanted.
        state_layers: also give the states that enter these decoder layers; as many as there are layers: what leaves
            the last one.
    """

    cache: KVCache
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits_for: Sequence[int] = ()
    state_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of a target. `context_length`: the most positions that a conversation may have."""

    vocab_size: int
    hidden_size: int
    layer_count: int
    kv_heads: int
    head_dim: int
    context_length: int


class Target(ABC):
    """Verifies chains and trees.

    Attributes:
        page_tokens: tokens whose keys and values conversations that begin alike can share; 0: they share none.
    """

    page_tokens = 0

    def __init__(self, shape: TargetShape) -> None:
        self.shape = shape
        self.vocab_size, self.hidden_size, self.layer_count = shape.vocab_size, shape.hidden_size, shape.layer_count
        self.kv_heads, self.head_dim, self.context_length = shape.kv_heads, shape.head_dim, shape.context_length

    @abstractmethod
    def new_cache(self) -> KVCache:
        """An empty cache for one conversation."""

    def kv_bytes(self) -> int:
        """How many keys and values all conversations together may hold unless the operator says otherwise."""
        return int(KV_SHARE * free_memory_bytes())

    def lsa_inputs(self, spans: Sequence[tuple[KVCache, int, int]]) -> Rows:
        """The memory encoder's input (`KVCache.lsa_input`) for rows of several conversations, one after the other.

        `spans`: caches, with the first of their rows that is wanted and the one after the last.
        """
        return np.concatenate([cache.lsa_input(start, stop) for cache, start, stop in spans])

    @abstractmethod
    def normed(self, state: Rows) -> Rows:
        """The final norm of what leaves the last layer, [rows, hidden_size]: what the head takes."""

    @abstractmethod
    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        """A function from what a drafter reads of this target to its rows; both float32 arrays."""

    @abstractmethod
    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        """Runs the forward of checked requests whose caches have begun."""

    def forward_all(self, requests: Sequence[Request]) -> list[TargetOutput]:
        """One forward for several conversations; each cache is in one request only.

        After a tree, call `cache.keep` with the accepted path before the next forward of that conversation.
        """
        if len({id(request.cache) for request in requests}) < len(requests):
            raise InternalError("A forward was given the same cache twice.")
        depths = [self._check(request) for request in requests]
        for request in requests:
            request.cache.begin(len(request.tokens))
        outputs = self._run(requests, depths)
        for request, of_request in zip(requests, depths, strict=True):
            request.cache.end(of_request)
        return outputs

    def forward(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        logits_for: slice | Sequence[int] = slice(None),
        want_state_layer: int | None = None,
    ) -> TargetOutput:
        """One conversation's forward; arguments as of `Request`, errors as of `forward_all`."""
        wanted = range(len(tokens))[logits_for] if isinstance(logits_for, slice) else logits_for
        layers = () if want_state_layer is None else (want_state_layer,)
        return self.forward_all([Request(cache, tokens, parents, wanted, layers)])[0]

    def prefill(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        want_state_layer: int | None = None,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    ) -> TargetOutput:
        """Run a long chain in chunks; logits and hidden state of the last token only, state of all."""
        self._check(Request(cache, tokens))
        cache.reserve(cache.length + len(tokens))
        states, output = [], None
        for start in range(0, len(tokens), chunk_tokens):
            chunk = tokens[start : start + chunk_tokens]
            last = start + len(chunk) == len(tokens)
            rows = slice(len(chunk) - 1, None) if last else slice(0, 0)
            output = self.forward(cache, chunk, None, rows, want_state_layer)
            states.append(output.state)
        if output is None:
            raise InternalError("A prefill ran no chunk.")
        kept = [part for part in states if part is not None]
        whole = {} if want_state_layer is None else {want_state_layer: np.concatenate(kept)}
        return TargetOutput(output.logits, output.hidden, whole)

    def _check(self, request: Request) -> Sequence[int]:
        tokens, parents = request.tokens, request.parents
        if not tokens:
            raise TokenRangeError("A forward needs at least one token, got none.", hint="Send at least one token.")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise TokenRangeError(f"The token id {wrong} is outside the vocabulary of {self.vocab_size}.")
        depths = range(len(tokens)) if parents is None else _depths(parents, len(tokens))
        needed = request.cache.length + max(depths) + 1
        if needed > self.context_length:
            raise ContextLengthError(f"{needed} tokens do not fit into the context of {self.context_length}.")
        for layer in request.state_layers:
            if not 0 <= layer <= self.layer_count:
                raise InternalError(f"Layer {layer} was requested from a target with {self.layer_count} layers.")
        if any(not 0 <= row < len(tokens) for row in request.logits_for):
            raise InternalError(
                f"Rows {list(request.logits_for)} were requested from a forward of {len(tokens)} tokens."
            )
        return depths


def is_chain(parents: Sequence[int] | None) -> bool:
    return parents is None or tree.is_chain(parents)


def _depths(parents: Sequence[int], tokens: int) -> list[int]:
    if len(parents) != tokens:
        raise TreeError(f"{tokens} tokens came with {len(parents)} parents.", hint="Send one parent a token.")
    tree.check_parents(parents)
    depths: list[int] = []
    tree.add_depths(depths, parents)
    return [depth - 1 for depth in depths]
