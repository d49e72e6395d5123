"""`Target`: what verifies chains and trees, one forward for the rows of several conversations, whatever computes it.

Arrays in and out are numpy's, float32. Invariants: for a path of a tree the result is that of the path by itself
(to the bit where the backend promises it); nothing is changed on an error, but for recurrent states, which fall back to
a checkpoint: `crop` says where a cache is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared import tree
from moa_shared.errors import ContextLengthError, InternalError, TokenRangeError, TreeError
from moa_shared.programs.machine import free_memory

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint import Checkpoint


Rows = npt.NDArray[np.float32]


class KVCache(ABC):
    """Keys and values of one conversation; made by `Target.new_cache`.

    `checkpoint_nbytes`: of a copy of its recurrent states; 0: it has none, and can be cut anywhere.
    """

    checkpoint_nbytes = 0

    def __init__(self) -> None:
        self._length = 0
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
        """Bytes of the memory held, in use or not."""

    @abstractmethod
    def most_nbytes(self, rows: int, drafted: int = 0) -> int:
        """The most bytes that a cache takes while it grows to `rows` rows, `drafted` of which are a draft's."""

    @abstractmethod
    def _free(self) -> None:
        """Gives the memory of all rows back."""

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows in all, at once: a prompt of known length need not grow in steps."""

    @abstractmethod
    def _keep(self, start: int, rows: Sequence[int]) -> None:
        """Keeps only these of the rows from `start` on, which are numbered from 0, ascending, and moved together."""

    @abstractmethod
    def _read(self, start: int, stop: int) -> Rows:
        """What `lsa_input` gives, with any number of last axes."""

    def begin(self, count: int) -> None:
        """Makes room for `count` rows after the last one; a forward calls this before it writes."""
        if not self._tail_is_chain:
            raise InternalError("The rows of a draft tree were not cut to a path before the next forward.")
        self.reserve(self._length + count)

    def end(self, depths: Sequence[int]) -> None:
        """Counts the rows written since `begin` as held; `depths` are their depths in the tree, roots 0."""
        self._tail_start = self._length
        self._tail_depths = tuple(depths)
        self._tail_is_chain = all(depth == row for row, depth in enumerate(depths))
        self._length += len(depths)

    def keep(self, path: Sequence[int]) -> None:
        """Keeps only `path` of the last forward's rows, from a root downwards, moved together; an empty one: none."""
        for depth, row in enumerate(path):
            if not 0 <= row < len(self._tail_depths) or self._tail_depths[row] != depth:
                raise TreeError(f"The rows {list(path)} are no path from the root of the last forward's tree.")
        self._keep(self._tail_start, path)
        self._length = self._tail_start + len(path)
        self._forget_tail()

    def crop(self, length: int) -> int:
        """Forgets the rows from `length` on; how many are held then: fewer where there are no states of so many."""
        if not 0 <= length <= self._length:
            raise InternalError(f"A cache of {self._length} rows cannot be cropped to {length}.")
        if not self._tail_is_chain and length > self._tail_start + 1:
            raise InternalError("A draft tree must be cut to a path, or dropped whole, before its rows are cropped.")
        self._length = length
        self._forget_tail()
        return length

    def checkpoint(self) -> None:
        """Keeps a copy of the recurrent states after the last row, which is none of a draft's."""
        raise InternalError("A checkpoint was asked of a cache without recurrent states.")

    def release(self) -> None:
        self._length = 0
        self._forget_tail()
        self._free()

    def read_layers(self, layers: Sequence[int], start: int, stop: int) -> Rows:
        """As `lsa_input`, of these layers side by side and without zeros: [stop - start, their widths]."""
        raise InternalError("Keys and values of some layers were requested from a cache that reads them all.")

    def lsa_input(self, start: int, stop: int) -> Rows:
        """The memory encoder's input for the rows `start..stop`, [stop - start, layers, KV width] float32, a copy.

        The last axis is, for each KV head in turn, its rotated key, then its value (as in arXiv 2410.03804's code), and
        zeros in layers that are narrower than others. Those that read others' keys and values are left out.
        """
        self._check_held(start, stop)
        return as_lsa_input(self._read(start, stop))

    def _check_held(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self._length:
            raise InternalError(f"Rows {start}..{stop} were requested from a cache of {self._length} rows.")

    def _forget_tail(self) -> None:
        self._tail_start, self._tail_depths, self._tail_is_chain = self._length, (), True


def as_lsa_input(rows: Rows) -> Rows:
    """Rows as `KVCache._read` gives them, with one last axis as `KVCache.lsa_input` has it."""
    return rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))


# 1,500 tokens on one core in bf16: 1.67 s in chunks of 128, 1.29 s of 256, 1.21 s of 512, 1.16 s of 1024. Other
# sessions wait for a chunk, so the smallest that costs little.
PREFILL_CHUNK_TOKENS = 256
KV_SHARE = 0.75  # of what is free once the target is loaded; the rest is for text, frames and the forward itself


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """The result of one forward, in float32 whatever the model computes in."""

    logits: Rows  # [rows asked, vocab]
    hidden: Rows  # [rows asked, hidden_size] after the final norm
    states: Mapping[int, Rows]  # [tokens, hidden_size] entering each layer asked for


@dataclass(frozen=True, slots=True)
class Request:
    """One conversation's part of a forward: tokens after what the cache holds, which become its new tail."""

    cache: KVCache
    tokens: Sequence[int]
    parents: Sequence[int] | None = None  # of each within `tokens`, -1 for the last token of the cache; None: a chain
    logits_for: Sequence[int] = ()  # the rows (of `tokens`) whose logits and hidden state are wanted
    state_layers: tuple[int, ...] = ()  # whose entering states are wanted; as many as there are: what leaves the last
    # How many of the last tokens states take in only once these are kept; None: all of a tree, none of a chain.
    drafted: int | None = None

    @property
    def drafts(self) -> int:
        return self.drafted if self.drafted is not None else 0 if self.parents is None else len(self.tokens)


class Target(ABC):
    """Verifies chains and trees. `context_length`: the most positions of a text; None: as it was trained for."""

    page_tokens = 0  # whose keys and values conversations that begin alike can share; 0: they share none
    checkpoint_tokens = 0  # at the ends of as many recurrent states can be kept; 0: there are none, and no need

    def __init__(
        self, vocab_size: int, hidden_size: int, layer_count: int, trained_length: int, context_length: int | None
    ) -> None:
        self.vocab_size, self.hidden_size, self.layer_count = vocab_size, hidden_size, layer_count
        self.context_length = trained_length if context_length is None else min(context_length, trained_length)

    @abstractmethod
    def new_cache(self) -> KVCache:
        """An empty cache for one conversation."""

    def kv_bytes(self) -> int:
        """Of the keys and values of all conversations together, unless the operator says otherwise."""
        return int(KV_SHARE * free_memory().nbytes)

    def lsa_inputs(self, spans: Sequence[tuple[KVCache, int, int]]) -> Rows:
        """`KVCache.lsa_input` of several caches, one after the other, for rows from the first to before the last."""
        return np.concatenate([cache.lsa_input(start, stop) for cache, start, stop in spans])

    @abstractmethod
    def normed(self, state: Rows) -> Rows:
        """The final norm of what leaves the last layer, [rows, hidden_size]: what the head takes."""

    @abstractmethod
    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        """A function from what a drafter reads of this target to its rows; both float32 arrays."""

    @abstractmethod
    def _run(
        self, requests: Sequence[Request], depths: Sequence[Sequence[int]], chosen: list[int], layers: list[int]
    ) -> tuple[Rows, Rows, Mapping[int, Rows]]:
        """Runs the forward of checked requests whose caches have begun; the head for the `chosen` of all rows.

        Gives [chosen, vocab] logits, [chosen, hidden_size] after the final norm, [rows, hidden_size] entering `layers`.
        """

    def forward_all(self, requests: Sequence[Request]) -> list[TargetOutput]:
        """One forward for several conversations; each cache is in one request only.

        After a tree, call `cache.keep` with the accepted path before the next forward of that conversation.
        """
        if len({id(request.cache) for request in requests}) < len(requests):
            raise InternalError("A forward was given the same cache twice.")
        depths = [self._check(request) for request in requests]
        for request in requests:
            request.cache.begin(len(request.tokens))
        firsts = list(accumulate((len(request.tokens) for request in requests), initial=0))
        chosen = [first + row for first, request in zip(firsts, requests, strict=False) for row in request.logits_for]
        layers = sorted({layer for request in requests for layer in request.state_layers})
        try:
            logits, hidden, states = self._run(requests, depths, chosen, layers)
        except Exception:
            for request in requests:  # states that it has torn go back to a checkpoint
                request.cache.crop(request.cache.length)
            raise
        outputs, row = [], 0
        for request, of_request, first in zip(requests, depths, firsts, strict=False):
            own, rows = slice(first, first + len(request.tokens)), slice(row, row := row + len(request.logits_for))
            of_layers = {layer: states[layer][own] for layer in request.state_layers}
            outputs.append(TargetOutput(logits[rows], hidden[rows], of_layers))
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

    def prefill(self, cache: KVCache, tokens: Sequence[int]) -> None:
        """Reads a long chain in chunks."""
        self._check(Request(cache, tokens))
        cache.reserve(cache.length + len(tokens))
        for start in range(0, len(tokens), PREFILL_CHUNK_TOKENS):
            self.forward(cache, tokens[start : start + PREFILL_CHUNK_TOKENS], None, ())

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
            wanted = list(request.logits_for)
            raise InternalError(f"Rows {wanted} were requested from a forward of {len(tokens)} tokens.")
        return depths


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a replica."""

    number: int  # 0 serves, the others follow
    count: int
    local: int  # among those of its machine
    local_count: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """None for a process by itself."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in environment for name in names) or int(environment["WORLD_SIZE"]) == 1:
        return None
    number, count, local = (int(environment[name]) for name in names[:3])
    return Rank(number, count, local, int(environment.get("LOCAL_WORLD_SIZE", count)))


def is_chain(parents: Sequence[int] | None) -> bool:
    return parents is None or tree.is_chain(parents)


def _depths(parents: Sequence[int], tokens: int) -> list[int]:
    if len(parents) != tokens:
        raise TreeError(f"{tokens} tokens came with {len(parents)} parents.", hint="Send one parent a token.")
    tree.check_parents(parents)
    depths: list[int] = []
    tree.add_depths(depths, parents)
    return [depth - 1 for depth in depths]
