"""Attention over pages: what each library's form of it is to the forward, and the one that runs anywhere.

The layers are transformers' own. Their attention is ours under a name that we register with transformers; it is given
the `Step` that writes the rows' keys and values and looks at those of their conversations.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from moa_server.verifier.pool import FILLER, PAGE_ROWS, Batch, BatchPart, PagePool

NAME = "moa_paged"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a family's attention does besides a causal softmax.

    `windows`: of each layer, how many of the newest positions a row sees, 0: all; empty: all layers see all. `cap`:
    scores become cap tanh(score / cap); 0: they stay.
    """

    windows: tuple[int, ...] = ()
    cap: float = 0.0

    @property
    def is_plain(self) -> bool:
        return not any(self.windows) and not self.cap

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0


PLAIN = AttentionShape()


class AttentionPlan(ABC):
    @abstractmethod
    def load(self, batch: Batch) -> None:
        """Prepares attention over the rows of `batch`; outside of graphs."""

    @abstractmethod
    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of one layer, whose new rows are written.

        Args:
            queries: rotated, [rows, heads, head_dim].

        Returns:
            [rows, heads, head_dim].
        """


class Attention(ABC):
    name: str
    has_graphs = False

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        self.pool, self.heads, self.shape = pool, heads, shape

    @abstractmethod
    def new_plan(self, rows: int = 0, pages: int = 0) -> AttentionPlan:
        """A plan; with `rows`, one for a graph, whose tensors stay where they are.

        `rows`: of each batch that it is loaded with; 0: any number.
        """


class Step:
    """What the attention of the layers works on during one forward; taken by transformers as a cache.

    `slots`: where the new rows are written.
    """

    def __init__(self, pool: PagePool, slots: torch.Tensor, plan: AttentionPlan) -> None:
        self._pool, self._slots, self._plan = pool, slots, plan

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._pool.write(layer, self._slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """[1, heads, rows, head_dim] to [1, rows, heads, head_dim]."""
        return self._plan.attend(layer, queries[0].transpose(0, 1))[None]


class SessionAttention(Attention):
    """Torch's own attention, one conversation after the other: the fast one on a CPU, which reads grouped heads."""

    name = "scaled_dot_product_attention"

    def new_plan(self, rows: int = 0, pages: int = 0) -> AttentionPlan:
        return SessionPlan(self.pool, self.shape)


class SessionPlan(AttentionPlan):
    """A mask for each tree and window; nothing else is prepared."""

    def __init__(self, pool: PagePool, shape: AttentionShape = PLAIN) -> None:
        self._pool, self._shape = pool, shape

    def load(self, batch: Batch) -> None:
        like = self._pool.tensor
        windows = set(self._shape.windows) or {0}
        self._parts = [
            (part, {window: _mask(part, like, window) for window in windows}, _place(part.used_pages(), like.device))
            for part in batch.parts
        ]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        outputs, first = [], 0
        for part, masks, pages in self._parts:
            last, mask = first + len(part.tokens), masks[self._shape.window(layer)]
            own = queries[first:last].transpose(0, 1)[None]
            keys = _rows(self._pool.keys(layer), pages, part.length)
            values = _rows(self._pool.values(layer), pages, part.length)
            if self._shape.cap:
                outputs.append(_capped(own, keys, values, mask, self._shape.cap)[0].transpose(0, 1))
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

    `queries`: [1, heads, rows, head_dim]; keys, values: [1, kv_heads, length, head_dim]. `mask`: [rows, length]; None:
    a single row, or rows that are plainly causal.
    """
    group, (rows, head_dim) = queries.shape[1] // keys.shape[1], queries.shape[2:]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = cap * torch.tanh(queries @ keys.transpose(2, 3) * head_dim**-0.5 / cap)
    if mask is None and rows > 1:
        mask = torch.full((rows, rows), -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


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

    Windows and caps are those of the `AttentionShape` that the step's plan was made with.
    """
    if step is None:
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, weights
    if scaling is not None and not math.isclose(factor := scaling * query.shape[-1] ** 0.5, 1.0):
        query = query * factor  # what attends divides by the root of the head's size
    return step.attend(int(module.layer_idx), query), None  # type: ignore[arg-type]


def register() -> None:
    """Make the name known to transformers, with the masks of its own `sdpa`."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _mask(part: BatchPart, like: torch.Tensor, window: int = 0) -> torch.Tensor | None:
    """[rows, length] in the dtype and on the device of `like`: 0 where a row sees the column, -inf where not.

    None where attention needs none: a single row that sees everything, a chain without prefix (plainly causal), and
    both only where no row is further from the first position than its window.
    """
    count = len(part.tokens)
    positions = part.prefix + np.asarray(part.depths)
    is_cut = window > 0 and int(positions.max()) >= window
    if not is_cut and (count == 1 or (part.parents is None and part.prefix == 0)):
        return None
    mask = np.zeros((count, part.length), np.float32)
    mask[:, part.prefix :][~part.seen()] = -np.inf
    if is_cut:
        columns = np.concatenate((np.arange(part.prefix), positions))
        mask[positions[:, None] - columns >= window] = -np.inf
    return torch.from_numpy(mask).to(like.device, like.dtype)


def _place(pages: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Pages that lie one after the other need not be gathered."""
    if list(pages) == list(range(pages[0], pages[0] + len(pages))):
        return slice(pages[0], pages[0] + len(pages))
    return torch.tensor(pages, device=device)


def _rows(pages: torch.Tensor, place: slice | torch.Tensor, count: int) -> torch.Tensor:
    """[1, kv_heads, count, head_dim] of the pages at `place`."""
    return pages[place].flatten(0, 1)[:count].transpose(0, 1)[None]


WORKSPACE_BYTES = 128 << 20  # what its documentation recommends
IDLE = BatchPart([], [], 1, FILLER.pages)  # a conversation without rows: a graph's batch has as many as rows


class FlashInferAttention(Attention):
    name = "FlashInfer"
    has_graphs = True

    def __init__(self, pool: PagePool, heads: int, shape: AttentionShape = PLAIN) -> None:
        super().__init__(pool, heads, shape)
        self.library: Any = import_module("flashinfer")
        # Forwards come one after the other, so all of them share it.
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.tensor.device)

    def new_plan(self, rows: int = 0, pages: int = 0) -> AttentionPlan:
        return FlashInferPlan(self, rows, pages)


class FlashInferPlan(AttentionPlan):
    """FlashInfer's wrapper, planned for one batch after the other.

    `rows`: of a graph's batches: each row may be a conversation of its own; 0: no graph.
    """

    def __init__(self, attention: FlashInferAttention, rows: int, pages: int) -> None:
        self._attention, self._rows = attention, rows
        device = attention.pool.tensor.device
        buffers: dict[str, Any] = {}
        if rows:
            numbers = {
                "qo_indptr_buf": rows + 1,
                "paged_kv_indptr_buf": rows + 1,
                "paged_kv_indices_buf": rows * pages,
                "paged_kv_last_page_len_buf": rows,
                "mask_indptr_buf": rows + 1,
            }
            buffers = {name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in numbers.items()}
            mask_bytes = rows * (pages * PAGE_ROWS // 8 + 1)  # each conversation's part begins at a byte
            buffers["custom_mask_buf"] = torch.zeros(mask_bytes, dtype=torch.uint8, device=device)
        self._wrapper = attention.library.BatchPrefillWithPagedKVCacheWrapper(
            attention.workspace, "NHD", use_cuda_graph=rows > 0, backend="fa2", **buffers
        )

    def load(self, batch: Batch) -> None:
        parts = [*batch.parts, *[IDLE] * (self._rows - len(batch.parts))]
        pool = self._attention.pool
        device, dtype = pool.tensor.device, pool.tensor.dtype
        kv_heads, head_dim = pool.tensor.shape[-2:]
        pages = [part.used_pages() for part in parts]
        masked = self._rows > 0 or not batch.is_causal  # a graph is recorded with a mask and always needs one
        mask = torch.from_numpy(flat_mask(parts)).to(device) if masked else None
        self._wrapper.plan(
            _offsets([len(part.tokens) for part in parts]),
            _offsets([len(each) for each in pages]),
            torch.tensor([page for each in pages for page in each], dtype=torch.int32, device=device),
            torch.tensor([(part.length - 1) % PAGE_ROWS + 1 for part in parts], dtype=torch.int32),
            self._attention.heads,
            kv_heads,
            head_dim,
            PAGE_ROWS,
            custom_mask=mask,
            causal=mask is None,
            q_data_type=dtype,
            kv_data_type=dtype,
            disable_split_kv=True,
        )

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        pool = self._attention.pool
        return cast(torch.Tensor, self._wrapper.run(queries.contiguous(), (pool.keys(layer), pool.values(layer))))


def flat_mask(parts: Sequence[BatchPart]) -> np.ndarray:
    """Which keys of its conversation each row sees: for each part [rows, length] bool, one after the other, flat."""
    masks = []
    for part in parts:
        mask = np.ones((len(part.tokens), part.length), np.bool_)
        mask[:, part.prefix :] = part.seen()
        masks.append(mask.reshape(-1))
    return np.concatenate(masks)


def _offsets(counts: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32))


class DeviceTensors:
    """Tensors by name. `fixed`: a tensor stays where it first was, with its shape: what a recorded graph reads."""

    def __init__(self, device: torch.device, *, fixed: bool) -> None:
        self._device, self._fixed = device, fixed
        self._held: dict[str, torch.Tensor] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the device; until the name is given again."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self._fixed and name in self._held:
            return self._held[name].copy_(source)
        self._held[name] = source.to(self._device, copy=self._fixed)
        return self._held[name]


MOST_GRAPH_ROWS = 256  # beyond that the layers take longer than starting their kernels does
Run = Callable[[], "States"]
Record = Callable[[Run], tuple[Callable[[], None], "States"]]


class States(NamedTuple):
    """What a forward gives: the state that leaves the last layer, [rows, hidden_size], and those that enter others."""

    last: torch.Tensor
    entering: dict[int, torch.Tensor]


class Layers(NamedTuple):
    """The parts of a model that a forward runs; transformers' modules.

    `scale`: of what enters the first layer, where `embed` does not scale it. `kinds`: of each layer, by which `rotary`
    has its angles; empty: all have the same.
    """

    embed: nn.Module
    rotary: nn.Module
    decoder: list[nn.Module]
    scale: float = 1.0
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    tensors: DeviceTensors
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: Inputs
    play: Callable[[], None]
    states: States


class Forward:
    """Runs the layers.

    `context_length`: the most rows of one conversation. `record`: runs a function once and records it; gives what plays
    it again, and the tensors that it then writes. None: nothing is recorded.
    """

    def __init__(self, layers: Layers, attention: Attention, context_length: int, record: Record | None = None) -> None:
        self._layers, self._attention, self._record = layers, attention, record
        self._most_pages = -(-context_length // PAGE_ROWS)
        self._direct = self._new_inputs()
        self._graphs: dict[int, Graph] = {}

    def run(self, batch: Batch, wanted: Iterable[int]) -> States:
        """The states of a batch's rows; those of a graph are overwritten by the next forward.

        `wanted`: the layers whose entering state is given; as many as there are layers: what leaves the last.
        """
        if self._record is None or batch.rows > MOST_GRAPH_ROWS:
            return self._prepare(self._direct, batch, frozenset(wanted))()
        graph = self._graphs.get(batch.rows)
        if graph is None:
            # With the states of all layers, which are few rows: else whoever first wants others waits for a recording.
            every = frozenset(range(len(self._layers.decoder) + 1))
            inputs = self._new_inputs(batch.rows)
            play, states = self._record(self._prepare(inputs, batch, every))
            graph = self._graphs[batch.rows] = Graph(inputs, play, states)
        else:
            self._prepare(graph.inputs, batch, frozenset())
        graph.play()
        return States(graph.states.last, {layer: graph.states.entering[layer] for layer in wanted})

    def _new_inputs(self, rows: int = 0) -> Inputs:
        device = self._attention.pool.tensor.device
        plan = self._attention.new_plan(rows, self._most_pages)
        return Inputs(DeviceTensors(device, fixed=rows > 0), plan)

    def _prepare(self, inputs: Inputs, batch: Batch, wanted: frozenset[int]) -> Run:
        """Puts the batch where the layers read it; gives the function that runs them."""
        put = inputs.tensors.put
        tokens, positions = put("tokens", batch.tokens), put("positions", batch.positions)
        step = Step(self._attention.pool, put("slots", batch.slots), inputs.plan)
        inputs.plan.load(batch)
        return lambda: self._run_layers(tokens, positions, step, wanted)

    def _run_layers(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, wanted: frozenset[int]) -> States:
        hidden: torch.Tensor = self._layers.embed(tokens[None])  # [1, rows, hidden_size]
        if self._layers.scale != 1:
            hidden = hidden * self._layers.scale
        rotary, kinds = self._layers.rotary, self._layers.kinds
        angles = {kind: rotary(hidden, positions[None], kind) for kind in dict.fromkeys(kinds)}
        same = None if kinds else rotary(hidden, positions[None])
        entering = {}
        for index, layer in enumerate(self._layers.decoder):
            if index in wanted:
                entering[index] = hidden[0]
            own = angles[kinds[index]] if kinds else same
            hidden = layer(hidden, position_embeddings=own, past_key_values=step, step=step)
        if len(self._layers.decoder) in wanted:
            entering[len(self._layers.decoder)] = hidden[0]
        return States(hidden[0], entering)
