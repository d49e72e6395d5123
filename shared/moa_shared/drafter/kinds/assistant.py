"""Gemma 4's assistants: layers of queries alone, which attend the target's own keys and values (google, 2026).

A step reads a token's embedding of the target beside the state before it: first the target's last hidden state after
its final norm, then what the step before has projected. Layers with a window attend the target's last such layer that
has keys and values, the others its last one without. A draft stays at the position of the token that it begins at, and
leaves no keys: a node needs its token and its parent's state. Small ones look at few clusters of their head's tokens.
Invariant: a draft sees rows of tokens before its position alone.
"""

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from moa_kernels import Cache, Heads, KernelError, Segment, Stack

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.config import DeviceHalf, DrafterConfig, Kind, Published, Shapes
from moa_shared.drafter.kinds.state import BaseState, Indices, MemoryCache
from moa_shared.drafter.kinds.weights import DRAFT_IDS, Arithmetic, Rows, check_tables, draft_ids, read_head
from moa_shared.errors import CheckpointError, ModelSourceError, ProtocolError
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.network import read_layer
from moa_shared.models.network.plan import EMBEDDING, LayerPlan, Plan, kv_width, layers_of, plan_of
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.gguf_keys import FULL, SLIDING
from moa_shared.models.storage.tensors import EMBEDDINGS

PRE, POST, CENTROIDS = "pre_projection.weight", "post_projection.weight", "centroids.weight"
ORDERING = "masked_embedding.token_ordering"
_KEYS = ("k_proj.weight", "v_proj.weight")
MOST_PREDICTED = 8  # committed tokens whose states have not come, that a draft begins before


@cache
def _plan(layer_config: str) -> Plan:
    """Of the layers that a configuration describes; ValueError: it does not, or they cannot be computed."""
    try:
        config = json.loads(layer_config)
        if not isinstance(config, dict) or not _is_of_gemma4(config):
            raise ValueError("it is of no Gemma 4")
        check_family(config, "the assistant")
        return plan_of(config)
    except ModelSourceError as error:
        raise ValueError(error.message) from error


def _is_of_gemma4(config: Mapping[str, Any]) -> bool:
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.layers_differ


def _widened(plan: LayerPlan) -> LayerPlan:
    """As transformers has it, windows are one wider than the target's."""
    return replace(plan, window=plan.window + 1) if plan.window else plan


class AssistantDecoder:
    def __init__(self, half: DeviceHalf) -> None:
        self.config = config = half.config
        own, self._own, self._target, plan = half.own, half.own, half.target, _plan(config.layer_config)
        check_tables(self._target, config.vocab_size, config.state_width, (EMBEDDINGS,))
        sizes = {size for each in plan.layers if each.sizes for size in (each.sizes.heads.dim, each.sizes.inner)}
        self.arithmetic = arithmetic = Arithmetic.of(half.weights, (config.hidden_size, config.state_width, *sizes))
        linear, shape = arithmetic.linear, replace(plan.shape, reads_memory=True)
        self._scale = np.sqrt(np.float32(config.state_width))
        self._pre, self.next_states = linear([own.array(PRE)]), linear([own.array(POST)])  # of what a step gives
        layers = [
            read_layer(own, f"layers.{number}", linear, reads_memory=True, family=plan.family, plan=_widened(each))
            for number, each in enumerate(plan.layers)
        ]
        self._window = config.traits.window(config)
        self._stacks: list[tuple[int, Stack]] = []  # of layers in a row that attend the same layer of the target
        for has_window, group in itertools.groupby(layers, lambda layer: layer.window > 0):
            first, *others = group
            shared = [first, *(replace(each, reads_layer=0) for each in others)]
            self._stacks.append((int(has_window), arithmetic.stack(shape, shared, plan.rotaries)))
        self._norm, self._eps = own.array("norm.weight"), plan.shape.eps
        self.draft_ids = draft_ids(own)
        self._head = linear([own.array(CENTROIDS)]) if config.clusters else read_head(own, None, arithmetic)

    def new_caches(self) -> list[MemoryCache]:
        """For the keys and values of each layer that is attended."""
        stacks = dict(self._stacks)
        caches = [stacks[place].new_cache(kv=self.arithmetic.kv) for place in sorted(stacks)]
        return [MemoryCache(each, width, _write) for each, width in zip(caches, self.config.memory_widths, strict=True)]

    def step(self, tokens: Sequence[int], states: Rows, caches: Sequence[MemoryCache], position: int) -> Rows:
        """What leaves the final norm for tokens beside the states before them, [tokens, hidden size]."""
        embedded = self._target.rows(EMBEDDINGS, tokens) * self._scale
        x = self._pre(np.concatenate((embedded, states), axis=-1))
        for place, stack in self._stacks:
            first = max(0, position - self._window) if place else 0
            x, _ = stack.run(x, [_seen_by_all(caches[place], len(tokens), position, first, stack)])
        return self.arithmetic.norm(x, self._norm, self._eps)

    def logits(self, features: Rows) -> Rows:
        """Of all tokens; those of clusters that are not looked at have just less than the least of the others."""
        config, scores = self.config, self._head(features)
        if not config.clusters:
            return scores
        size = config.vocab_size // config.clusters
        chosen = np.argpartition(-scores, config.chosen_clusters - 1)[:, : config.chosen_clusters]
        logits = np.empty((len(features), config.vocab_size), np.float32)
        for row, clusters in enumerate(chosen):
            columns = (clusters[:, None] * size + np.arange(size)).reshape(-1)
            found = self._own.rows(layout.OWN_HEAD, columns) @ features[row]
            logits[row] = found.min() - 1
            logits[row, columns] = found
        return logits


def _write(cache: Cache, rows: Rows, positions: Indices) -> None:
    """Appends rows as the target's cache gives them: of each head its key, which is rotated, and its value."""
    number, dim = cache.heads[0]
    split = rows.reshape(len(rows), number, 2, dim)
    cache.write(0, split[:, :, 0], split[:, :, 1])
    cache.length += len(rows)


def _seen_by_all(memory: MemoryCache, count: int, position: int, first: int, stack: Stack) -> Segment:
    """`count` rows at a position, which all see what has come of positions from `first` on, before it."""
    slots, positions = memory.rows_between(first, position), np.full(count, position, np.int32)
    if not len(slots):  # attention to nothing, which gives zeros
        nothing = stack.new_cache(kv=memory.cache.kv)
        _write(nothing, np.zeros((1, nothing.width), np.float32), slots)
        return Segment.memory(nothing, positions)
    seen, tail = 0, slots
    if int(slots[-1]) + 1 == len(slots) or (first and int(slots[-1] - slots[0]) + 1 == len(slots) == position - first):
        seen, tail = int(slots[-1]) + 1, slots[:0]  # the window of the layers does the rest
    starts, seen_by = np.arange(count + 1, dtype=np.int32) * np.int32(len(tail)), np.full(count, seen, np.int32)
    return Segment(memory.cache, memory.cache.length, positions, seen_by, starts, np.tile(tail, count))


class AssistantState(BaseState):
    def __init__(self, decoder: AssistantDecoder) -> None:
        super().__init__(decoder.draft_ids)
        self.decoder = decoder
        self._memory = decoder.new_caches()
        self._states: dict[int, Rows] = {}  # the target's, by position; a conversation may be cut back to any of them
        self._position = 0  # of the draft
        self._above = np.empty(0, np.float32)  # the state that nodes below the newest token read
        self._node_states: list[Rows] = []

    def crop(self, length: int) -> None:
        super().crop(length)
        for each in self._memory:
            each.crop(length)
        self._states = {position: state for position, state in self._states.items() if position < length}

    def append_memory(self, start: int, rows: Rows) -> None:
        """Rows of a token that no window sees any more may lack what they have for one."""
        config, width = self.decoder.config, rows.shape[-1]
        if width not in (config.memory_widths[0], config.memory_width):
            raise ProtocolError(f"memory rows of {config.memory_width} numbers", f"{width}")
        first = 0
        for each, own in zip(self._memory, config.memory_widths, strict=True):
            if first < width:
                each.append(start, rows[:, first : first + own])
            first += own

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the target's last hidden states, [rows, its hidden size]."""
        if rows.shape[-1] != self.decoder.config.state_width:
            raise ProtocolError(f"state rows of {self.decoder.config.state_width} numbers", f"{rows.shape[-1]}")
        self._states.update(enumerate(rows, start))

    def begin(self) -> Rows:
        """A draft begins after the newest token whose state has come, if only few tokens follow it."""
        self._begin()
        last, decoder = len(self.tokens) - 1, self.decoder
        known = [at for at in range(last - 1, last - 2 - MOST_PREDICTED, -1) if at in self._states]
        self._position = known[0] + 1 if known else last
        self._above = self._states[known[0]] if known else np.zeros(decoder.config.state_width, np.float32)
        features = np.empty((0, 0), np.float32)
        for token in self.tokens[self._position :]:
            features = decoder.step([token], self._above[None], self._memory, self._position)
            self._above = decoder.next_states(features)[0]
        self._drafting = True
        return decoder.logits(features)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        logits = []
        while tokens:  # those whose parents are among the new ones come after them
            known = len(self._nodes)
            now = next((place for place, parent in enumerate(parents) if parent >= known), len(tokens))
            self._add(tokens[:now], parents[:now])
            above = np.stack([self._above if parent < 0 else self._node_states[parent] for parent in parents[:now]])
            features = self.decoder.step(tokens[:now], above, self._memory, self._position)
            self._node_states += list(self.decoder.next_states(features))
            logits.append(self.decoder.logits(features))
            tokens, parents = tokens[now:], parents[now:]
        return np.concatenate(logits)

    def _drop_draft(self) -> None:
        super()._drop_draft()
        self._node_states.clear()


class _Assistant(Kind):
    name = "assistant"
    label = "Gemma 4 assistant"
    variants: ClassVar = {"assistant": label}
    renamed: ClassVar = {"model.": "", "embed_tokens.": "lm_head.", ORDERING: DRAFT_IDS, "masked_embedding.": ""}
    takes = frozenset({
        *("layer_config", "memory_layers", "memory_widths", "clusters", "chosen_clusters"),
        *("target_hidden_size", "own_heads", "own_head_dim"),
    })  # fmt: skip
    has_own_head = True
    reads_target_cache = True
    decoder, state = AssistantDecoder, AssistantState

    def fits(self, names: Collection[str]) -> bool:
        return bool({PRE, POST} & set(names))

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        text, target = of.config.get("text_config"), of.target
        if not isinstance(text, Mapping):
            raise ValueError("it has no text_config")
        own = {**text, "num_kv_shared_layers": 0, EMBEDDING: 0, "vocab_size_per_layer_input": None}
        try:
            check_family(own, of.where)
        except ModelSourceError as error:
            raise CheckpointError(error.message, hint=layout.ANOTHER) from None
        if not _is_of_gemma4(target):
            what = f"The {self.label} {of.where} is for a Gemma 4, which {of.target_id} is not."
            raise CheckpointError(what, hint=layout.ANOTHER)
        theirs, ours = _attended(target), _attended(own)
        said: dict[str, tuple[object, object]] = {
            "hidden_size": (of.config.get("backbone_hidden_size", shapes[POST][0]), target["hidden_size"]),
            "vocab_size": (own["vocab_size"], target["vocab_size"]),
        }
        said |= {f"last layer of {kind}": (_told(each), _told(theirs.get(kind))) for kind, each in ours.items()}
        for what, (wanted, has) in said.items():
            if wanted != has:
                words = f"is for a target whose {what} is {wanted}, {of.target_id} has {has}"
                raise CheckpointError(f"The {self.label} {of.where} {words}.", hint=layout.ANOTHER)
        plan, ordered = plan_of(own), bool(of.config.get("use_ordered_embeddings"))
        config = DrafterConfig(
            **(layout.sizes_without_memory(target) | {"hidden_size": plan.shape.hidden}),
            kind=self.name,
            sa_kv_heads=plan.shape.kv_heads,
            sa_mlp=plan.shape.inner,
            own_layers=len(plan.layers),
            own_heads=plan.shape.heads,
            own_head_dim=plan.shape.head_dim,
            target_kv_width=kv_width(target),
            target_hidden_size=int(target["hidden_size"]),
            layer_config=json.dumps(own, sort_keys=True),
            memory_layers=tuple(theirs[kind][0] for kind in ours),
            memory_widths=tuple(heads.width for _, heads in ours.values()),
            clusters=int(of.config.get("num_centroids", 2048)) if ordered else 0,
            chosen_clusters=int(of.config.get("centroid_intermediate_top_k", 32)) if ordered else 0,
            draft_vocab=int(own["vocab_size"]) if ordered else 0,
        )
        return config, ()

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        try:
            plan, attended = _plan(config.layer_config), _attended(json.loads(config.layer_config))
        except (ValueError, KernelError) as error:
            return {f"layer_config describes no layers ({error})": False}
        shape, clusters, widths = plan.shape, config.clusters, tuple(heads.width for _, heads in attended.values())
        sizes = (len(plan.layers), shape.hidden, shape.heads, shape.head_dim, widths)
        ours = (config.own_layers, config.hidden_size, config.heads, config.head_dim, config.memory_widths)
        return {
            "layer_config has other sizes, or experts": ours == sizes and not any(each.mixture for each in plan.layers),
            "memory_layers must be layers of the target, one for each of memory_widths": len(config.memory_layers)
            == len(widths)
            and {*config.memory_layers} <= {*range(config.target_layers)},
            "clusters must share the vocabulary evenly": not clusters
            or (config.vocab_size % clusters == 0 and config.draft_vocab == config.vocab_size),
            "chosen_clusters must be 1 to clusters": min(1, clusters) <= config.chosen_clusters <= clusters,
        }

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden, plan = config.hidden_size, _plan(config.layer_config)
        shapes: Shapes = {PRE: (hidden, 2 * config.state_width), POST: (config.state_width, hidden)}
        shapes |= {"norm.weight": (hidden,), layout.OWN_HEAD: (config.vocab_size, hidden)}
        if config.clusters:
            shapes[CENTROIDS] = (config.clusters, hidden)
        for name, layer in zip(self.layers(config), plan.layers, strict=True):
            dim, inner = (layer.sizes.heads.dim, layer.sizes.inner) if layer.sizes else (config.head_dim, config.sa_mlp)
            of_layer = layout.layer_shapes(name, hidden, config.heads * dim, dim, inner)
            shapes |= {each: shape for each, shape in of_layer.items() if not each.endswith(_KEYS)}
            shapes |= {f"{name}.{part}_feedforward_layernorm.weight": (hidden,) for part in ("pre", "post")}
            shapes |= {f"{name}.self_attn.q_norm.weight": (dim,), f"{name}.layer_scalar": (1,)}
        return shapes

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        return -(-config.memory_width // (2 * config.head_dim)), -(-config.state_width // config.hidden_size)

    def memory_width(self, config: DrafterConfig) -> int:
        return sum(config.memory_widths)

    def window(self, config: DrafterConfig) -> int:
        return max(_widened(each).window for each in _plan(config.layer_config).layers)


def _attended(config: Mapping[str, Any]) -> dict[str, tuple[int, Heads]]:
    """By kind the last layer that has keys and values, and its heads; first the kind that sees all positions."""
    own = [(kind, each.heads) for kind, each in layers_of(config) if each.reads_layer is None]
    return {kind: (at, heads) for wanted in (FULL, SLIDING) for at, (kind, heads) in enumerate(own) if kind == wanted}


def _told(attended: tuple[int, Heads] | None) -> str:
    return f"{attended[1].number} heads of {attended[1].dim} numbers" if attended else "nothing"


ASSISTANT = _Assistant()
