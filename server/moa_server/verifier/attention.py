"""The decoder layers over the rows of a batch, with attention over pages: by FlashInfer, or by torch, anywhere.

The layers are transformers' own. Their attention is ours under a name that we register with transformers; it is given
the `Step` that writes the rows' keys and values and looks at those of their conversations. State: recorded graphs, by
the number of rows. Invariant: a graph reads the batch from tensors that stay where they are, so that playing it gives
what running the layers gives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from moa_shared.models.network.plan import Plan
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from moa_server.verifier.pool import FILLER, PAGE_ROWS, Batch, BatchPart, PagePool

NAME = "moa_paged"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a family's attention does besides a causal softmax."""

    windows: tuple[int, ...] = ()  # of each layer, how many of the newest positions a row sees, 0: all; empty: all
    cap: float = 0.0  # scores become cap tanh(score / cap); 0: they stay

    @classmethod
    def of(cls, plan: Plan) -> AttentionShape:
        return cls(tuple(layer.window for layer in plan.layers), plan.shape.score_cap)

    @property
    def is_plain(self) -> bool:
        return not any(self.windows) and not self.cap

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0


PLAIN = AttentionShape()


class Attention(ABC):
    """Attention over the pages of a pool, for one batch after the other."""

    name: str
    has_graphs = False

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        self.pool, self.heads, self.shape = pool, heads, shape

    def for_graph(self, rows: int, pages: int) -> Self:
        """The same for batches of `rows` rows, each with at most `pages` pages, whose tensors stay where they are."""
        return copy(self)

    @abstractmethod
    def load(self, batch: Batch) -> None:
        """Prepares attention over the rows of `batch`; outside of graphs."""

    @abstractmethod
    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of one layer, whose new rows are written: rotated queries, [rows, heads, head_dim], to the same."""


class SessionAttention(Attention):
    """Torch's own attention, one conversation after the other: the fast one on a CPU, which reads grouped heads."""

    name = "scaled_dot_product_attention"

    def load(self, batch: Batch) -> None:
        like = self.pool.tensor
        windows = set(self.shape.windows) or {0}
        self._parts = [
            (part, {window: _mask(part, like, window) for window in windows}, _place(part.used_pages(), like.device))
            for part in batch.parts
        ]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        outputs, first = [], 0
        for part, masks, pages in self._parts:
            last, mask = first + len(part.tokens), masks[self.shape.window(layer)]
            own = queries[first:last].transpose(0, 1)[None]
            keys, values = (  # [1, kv_heads, length, head_dim]
                each[pages].flatten(0, 1)[: part.length].transpose(0, 1)[None] for each in self.pool.keys_values(layer)
            )
            if self.shape.cap:
                attended = _capped(own, keys, values, mask, self.shape.cap)
            else:
                is_causal = mask is None and last - first > 1
                attended = scaled_dot_product_attention(own, keys, values, mask, is_causal=is_causal, enable_gqa=True)
            outputs.append(attended[0].transpose(0, 1))
            first = last
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _capped(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, cap: float
) -> torch.Tensor:
    """Attention with capped scores, which torch's own does not have; its softmax is in float32, as in transformers.

    Arguments as of `scaled_dot_product_attention`; `mask`: None: a single row, or rows that are plainly causal.
    """
    group, (rows, head_dim) = queries.shape[1] // keys.shape[1], queries.shape[2:]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = cap * torch.tanh(queries @ keys.transpose(2, 3) * head_dim**-0.5 / cap)
    if mask is None and rows > 1:
        mask = torch.full((rows, rows), -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


def _mask(part: BatchPart, like: torch.Tensor, window: int = 0) -> torch.Tensor | None:
    """[rows, length] like `like`: 0 where a row sees the column, -inf where not.

    None for a single row that sees everything, and for a chain without prefix (plainly causal), if no row is further
    from the first position than its window.
    """
    count = len(part.tokens)
    positions = part.prefix + np.asarray(part.depths)
    is_cut = window > 0 and int(positions.max()) >= window
    if not is_cut and (count == 1 or (part.parents is None and part.prefix == 0)):
        return None
    mask = np.where(_seen(part), np.float32(0), np.float32(-np.inf))
    if is_cut:
        columns = np.concatenate((np.arange(part.prefix), positions))
        mask[positions[:, None] - columns >= window] = -np.inf
    return torch.from_numpy(mask).to(like.device, like.dtype)


def _place(pages: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Pages that lie one after the other need not be gathered."""
    in_turn = range(pages[0], pages[0] + len(pages))
    return slice(in_turn.start, in_turn.stop) if list(pages) == list(in_turn) else torch.tensor(pages, device=device)


WORKSPACE_BYTES = 128 << 20  # what its documentation recommends
IDLE = BatchPart([], [], 1, FILLER.pages)  # a conversation without rows: a graph's batch has as many as rows


class FlashInferAttention(Attention):
    """FlashInfer's wrapper, planned for one batch after the other."""

    name = "FlashInfer"
    has_graphs = True

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        super().__init__(pool, heads, shape)
        self._library: Any = import_module("flashinfer")
        # Forwards come one after the other, so all of them share it.
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.tensor.device)
        self._begin(0, 0)

    def _begin(self, rows: int, pages: int) -> None:
        """`rows`: of a graph's batches, where each row may be a conversation of its own; 0: no graph."""
        self._rows = rows
        buffers: dict[str, Any] = {}
        if rows:
            numbers = {
                "qo_indptr_buf": rows + 1,
                "paged_kv_indptr_buf": rows + 1,
                "paged_kv_indices_buf": rows * pages,
                "paged_kv_last_page_len_buf": rows,
                "mask_indptr_buf": rows + 1,
            }
            device = self.pool.tensor.device
            buffers = {name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in numbers.items()}
            mask_bytes = rows * (pages * PAGE_ROWS // 8 + 1)  # each conversation's part begins at a byte
            buffers["custom_mask_buf"] = torch.zeros(mask_bytes, dtype=torch.uint8, device=device)
        self._wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_cuda_graph=rows > 0, backend="fa2", **buffers
        )

    def for_graph(self, rows: int, pages: int) -> Self:
        own = super().for_graph(rows, pages)
        own._begin(rows, pages)
        return own

    def load(self, batch: Batch) -> None:
        parts = [*batch.parts, *[IDLE] * (self._rows - len(batch.parts))]
        device, dtype = self.pool.tensor.device, self.pool.tensor.dtype
        kv_heads, head_dim = self.pool.tensor.shape[-2:]
        tokens, pages = [part.tokens for part in parts], [part.used_pages() for part in parts]
        # A graph is recorded with a mask and always needs one.
        masked = self._rows > 0 or any(part.parents is not None for part in parts)
        mask = torch.from_numpy(np.concatenate([_seen(part).reshape(-1) for part in parts])) if masked else None
        self._wrapper.plan(
            *(torch.from_numpy(np.cumsum([0, *map(len, each)], dtype=np.int32)) for each in (tokens, pages)),
            torch.tensor([page for each in pages for page in each], dtype=torch.int32, device=device),
            torch.tensor([(part.length - 1) % PAGE_ROWS + 1 for part in parts], dtype=torch.int32),
            self.heads,
            kv_heads,
            head_dim,
            PAGE_ROWS,
            custom_mask=None if mask is None else mask.to(device),
            causal=mask is None,
            q_data_type=dtype,
            kv_data_type=dtype,
            disable_split_kv=True,
        )

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self._wrapper.run(queries.contiguous(), self.pool.keys_values(layer)))


def _seen(part: BatchPart) -> np.ndarray:
    """[rows, length]: which keys of its conversation each row sees."""
    seen = np.ones((len(part.tokens), part.length), np.bool_)
    seen[:, part.prefix :] = part.seen()
    return seen


@dataclass(frozen=True, slots=True)
class Step:
    """What the attention of the layers works on during one forward; taken by transformers as a cache."""

    attention: Attention
    slots: torch.Tensor  # where the new rows are written

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.attention.pool.write(layer, self.slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    step: Step | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What transformers calls; without a step (`model.generate`) transformers' own `sdpa`.

    `query`: [1, heads, rows, head_dim]. Windows and caps are those of the step's `AttentionShape`.
    """
    if step is None:
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, weights
    if scaling is not None and not math.isclose(factor := scaling * query.shape[-1] ** 0.5, 1.0):
        query = query * factor  # what attends divides by the root of the head's size
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return step.attention.attend(layer, query[0].transpose(0, 1))[None], None


def register() -> None:
    """Makes the name known to transformers, with the masks of its own `sdpa`."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


MOST_GRAPH_ROWS = 256  # beyond that the layers take longer than starting their kernels does


class States(NamedTuple):
    """What a forward gives: the state that leaves the last layer, [rows, hidden_size], and those that enter others."""

    last: torch.Tensor
    entering: dict[int, torch.Tensor]


RunLayers = Callable[[], States]
Record = Callable[[RunLayers], tuple[Callable[[], None], States]]


class Inputs:
    """Where the layers find a batch on the device. `fixed`: a tensor stays where it first was, as a graph reads it."""

    def __init__(self, attention: Attention, *, fixed: bool = False) -> None:
        self.attention, self._fixed = attention, fixed
        self._held: dict[str, torch.Tensor] = {}

    def put(self, name: str, array: np.ndarray) -> torch.Tensor:
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self._fixed and name in self._held:
            return self._held[name].copy_(source)
        self._held[name] = source.to(self.attention.pool.tensor.device, copy=self._fixed)
        return self._held[name]


class Forward:
    """Runs the layers of `model`, a causal LM of transformers, as `plan` says.

    `record`: runs a function once and records it; gives what plays it again, and the tensors that it then writes.
    """

    def __init__(
        self, model: Any, plan: Plan, attention: Attention, context_length: int, record: Record | None = None
    ) -> None:
        inner = model.model
        self._embed, self._rotary, self._decoder = inner.embed_tokens, inner.rotary_emb, list(inner.layers)
        # Of what enters the first layer, where `embed` does not scale it itself.
        self._scale = 1.0 if plan.family.scales_embeddings else plan.embedding_scale
        # Of each layer, by which `rotary` has its angles; empty: all have the same.
        has_kinds = "layer_type" in signature(self._rotary.forward).parameters
        self._kinds: tuple[str, ...] = tuple(model.config.layer_types) if has_kinds else ()
        self._record, self._most_pages = record, -(-context_length // PAGE_ROWS)
        self._direct = Inputs(attention)
        self._graphs: dict[int, tuple[Inputs, Callable[[], None], States]] = {}

    def run(self, batch: Batch, wanted: Iterable[int]) -> States:
        """The states of a batch's rows entering the layers `wanted`; the next forward overwrites those of a graph."""
        if self._record is None or batch.rows > MOST_GRAPH_ROWS:
            return self._prepare(self._direct, batch, frozenset(wanted))()
        if (graph := self._graphs.get(batch.rows)) is None:
            # With the states of all layers, which are few rows: else whoever first wants others waits for a recording.
            every = frozenset(range(len(self._decoder) + 1))
            inputs = Inputs(self._direct.attention.for_graph(batch.rows, self._most_pages), fixed=True)
            graph = self._graphs[batch.rows] = (inputs, *self._record(self._prepare(inputs, batch, every)))
        else:
            self._prepare(graph[0], batch, frozenset())
        _, play, states = graph
        play()
        return States(states.last, {layer: states.entering[layer] for layer in wanted})

    def _prepare(self, inputs: Inputs, batch: Batch, wanted: frozenset[int]) -> RunLayers:
        """Puts the batch where the layers read it; gives the function that runs them."""
        tokens, positions = inputs.put("tokens", batch.tokens), inputs.put("positions", batch.positions)
        step = Step(inputs.attention, inputs.put("slots", batch.slots))
        inputs.attention.load(batch)
        return lambda: self._run_layers(tokens, positions, step, wanted)

    def _run_layers(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, wanted: frozenset[int]) -> States:
        hidden: torch.Tensor = self._embed(tokens[None])  # [1, rows, hidden_size]
        if self._scale != 1:
            hidden = hidden * self._scale
        angles = {kind: self._rotary(hidden, positions[None], kind) for kind in dict.fromkeys(self._kinds)}
        same = None if angles else self._rotary(hidden, positions[None])
        entering = {}
        for index, layer in enumerate(self._decoder):
            if index in wanted:
                entering[index] = hidden[0]
            own = angles[self._kinds[index]] if angles else same
            hidden = layer(hidden, position_embeddings=own, past_key_values=step, step=step)
        if len(self._decoder) in wanted:
            entering[len(self._decoder)] = hidden[0]
        return States(hidden[0], entering)
