"""What the kinds share: a layer's shapes, and how a published checkpoint becomes one of ours. Pure.

Invariant: what fits no drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from moa_kernels import Cache, Layer, Rotary, StackShape
from moa_kernels.transformer.layer import SILU

from moa_shared.drafter.kinds.config import EACH, JOINT, DeviceHalf, DrafterConfig, Kind, MakeRows, Published, Shapes
from moa_shared.drafter.kinds.weights import Arithmetic, Rows, draft_ids
from moa_shared.errors import CheckpointError
from moa_shared.models.network.network import Weights, read_layer
from moa_shared.models.network.plan import Plan, plan_of

if TYPE_CHECKING:
    import torch

    from moa_shared.drafter.kinds.config import Device, Tensors, TorchRows

PROJECTION, OUT_NORM = "fc.weight", "hidden_norm.weight"
OWN_EMBEDDINGS, OWN_HEAD = "embed_tokens.weight", "lm_head.weight"
OVERRIDE = "moa_state_entries"  # a key for config.json, by which a user corrects numbers of layers
ANOTHER = "Give a drafter that was trained for this target, or --drafter none."


def layer_shapes(name: str, model: int, queries: int, keys: int, inner: int) -> Shapes:
    """Shapes of one layer with the prefix `name`; widths are of its rows, all query heads, all key heads, its MLP."""
    shapes: Shapes = {
        f"self_attn.{part}_proj": (size, model) for part, size in zip("qkv", (queries, keys, keys), strict=True)
    }
    shapes["self_attn.o_proj"] = (model, queries)
    shapes |= {f"mlp.{part}_proj": (inner, model) for part in ("gate", "up")}
    shapes["mlp.down_proj"] = (model, inner)
    shapes |= {f"{norm}_layernorm": (model,) for norm in ("input", "post_attention")}
    return {f"{name}.{part}.weight": shape for part, shape in shapes.items()}  # in an order that seeds depend on


def own_layer_shapes(config: DrafterConfig, biased: str = "qkv") -> Shapes:
    """Shapes of the drafter's own layers; `biased`: projections that have a bias where the configuration says so."""
    query, keys = config.heads * config.head_dim, config.sa_kv_heads * config.head_dim
    widths = {"q": query, "k": keys, "v": keys, "o": config.hidden_size}
    shapes: Shapes = {}
    for name in config.traits.layers(config):
        shapes |= layer_shapes(name, config.hidden_size, query, keys, config.sa_mlp)
        if config.head_norms:
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        if config.qkv_bias:
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (widths[part],) for part in biased}
    return shapes


class OwnLayers:
    """Layers of a drafter's own, of the sizes of `sa_*`, and how they are computed."""

    def __init__(self, half: DeviceHalf, embedding: int = 0, plan: Plan | None = None) -> None:
        """`plan`: of the target, whose layers with attention they are like; None: they are of Llama's form."""
        self.config = config = half.config
        self.arithmetic = Arithmetic.of(half.weights, (config.hidden_size, config.head_dim, config.sa_mlp))
        linear, names = self.arithmetic.linear, config.traits.layers(config)
        form: dict[str, Any] = {} if plan is None else {"family": plan.family, "plan": plan.attention_layer}
        layers = [read_layer(half.own, name, linear, input_norm=config.input_norm, **form) for name in names]
        sizes = config.heads, config.sa_kv_heads, config.head_dim, config.rms_norm_eps
        shape = plan.shape if plan else StackShape(config.hidden_size, config.sa_mlp, *sizes, embedding=embedding)
        rotary = plan.rotaries if plan else Rotary(config.head_dim, config.rope_parameters)
        self.stack = self.arithmetic.stack(shape, self.arranged(layers), rotary)
        self.draft_ids = draft_ids(half.own)

    def arranged(self, layers: list[Layer]) -> list[Layer]:
        return layers

    def new_cache(self) -> Cache:
        return self.stack.new_cache(kv=self.arithmetic.kv)

    def normed(self, rows: Rows, weight: Rows | None) -> Rows:
        return rows if weight is None else self.arithmetic.norm(rows, weight, self.config.rms_norm_eps)


def check_form(
    of: Published, label: str, shapes: Shapes, hidden: object, forms: Mapping[str, object] = {}, **theirs: object
) -> None:
    """Refuses a checkpoint of a form that is not computed, or for a target of other sizes.

    `forms`: in words, and whether it has them. `hidden`, `theirs`: by key of the target's configuration; None where the
    checkpoint does not say.
    """
    activation, windows = of.sizes.get("hidden_act", SILU), of.sizes.get("use_sliding_window")
    forms = {
        f"the activation {activation}": activation != SILU,
        "layers that see a window of the text only (sliding_attention)": windows
        or "sliding_attention" in (of.sizes.get("layer_types") or ()),
        **forms,
    }
    if reason := next((reason for reason, has_it in forms.items() if has_it), ""):
        hint = f"Give another {label} checkpoint of the same target, or --drafter none."
        raise CheckpointError(f"{of.where} has {reason}: moa does not compute that.", hint=hint)
    table = shapes.get(OWN_EMBEDDINGS)
    vocabulary = table[0] if table else of.sizes.get("vocab_size")
    for key, size in {"hidden_size": hidden, "vocab_size": vocabulary, **theirs}.items():
        if size is not None and size != of.target[key]:
            what = f"is for a target whose {key} is {size}, {of.target_id} has {of.target[key]}"
            raise CheckpointError(f"The {label} checkpoint {of.where} {what}.", hint=ANOTHER)


def target_sizes(target: Mapping[str, Any]) -> dict[str, Any]:
    """What a drafter's configuration says of its target."""
    stack = plan_of(target).shape
    return {
        "vocab_size": int(target["vocab_size"]),
        "hidden_size": stack.hidden,
        "target_layers": int(target["num_hidden_layers"]),
        "target_heads": stack.heads,
        "target_kv_heads": stack.kv_heads,
        "target_head_dim": stack.head_dim,
    }


def sizes_without_memory(target: Mapping[str, Any]) -> dict[str, Any]:
    """As `target_sizes`, of a drafter that has neither cross- nor layer self-attention."""
    heads = plan_of(target).shape.kv_heads
    unused = {"ca_kv_heads": heads, "ca_mlp": 1, "lsa_heads": heads, "lsa_kv_heads": heads, "lsa_mlp": 1}
    return target_sizes(target) | unused


def own_sizes(
    of: Published, shapes: Shapes, heads: int, head_dim: int, eps: float, layer: str = "layers.0"
) -> dict[str, Any]:
    """What a configuration says of layers of the drafter's own, whose tensors have these shapes, by our names."""
    stack = plan_of(of.target).shape
    return {
        **sizes_without_memory(of.target),
        "sa_kv_heads": shapes[f"{layer}.self_attn.k_proj.weight"][0] // head_dim,
        "sa_mlp": shapes[f"{layer}.mlp.up_proj.weight"][0],
        "own_layers": sum(name.endswith(".mlp.up_proj.weight") for name in shapes),
        "own_heads": 0 if heads == stack.heads else heads,
        "own_head_dim": 0 if head_dim == stack.head_dim else head_dim,
        "head_norms": f"{layer}.self_attn.q_norm.weight" in shapes,
        "rms_norm_eps": float(of.sizes.get("rms_norm_eps", eps)),
        "rope_parameters": rope_of(of.sizes),
    }


def read_entries(of: Published, shapes: Shapes, inputs: Any, outputs: Any, usual: Sequence[int]) -> tuple[int, ...]:
    """The hidden states that are read: 0 the embeddings, e the output of layer e - 1.

    `inputs`: layers whose input is read, a user's first; `outputs`: whose output is; `usual`: where neither is said.
    """
    entries = [int(number) for number in of.config.get(OVERRIDE) or inputs or ()]
    entries = entries or [int(number) + 1 for number in outputs or ()] or [*usual]
    read, width = shapes[PROJECTION][1], plan_of(of.target).shape.hidden
    if read % width:
        what = f"takes {read} numbers a token, {of.target_id} has states of {width}"
        raise CheckpointError(f"The projection of {of.where} {what}.", hint=ANOTHER)
    if len(entries) != read // width:
        what = f"names {len(entries)} of the target's hidden states, its projection takes {read // width}"
        hint = f'Correct its config.json: "{OVERRIDE}" lists them, 0 the embeddings, e the output of layer e - 1.'
        raise CheckpointError(f"{of.where} {what}.", hint=hint)
    layers = int(of.target["num_hidden_layers"])
    if wrong := [entry for entry in entries if not 0 <= entry <= layers]:
        what = f"reads hidden state {wrong[0]} of the target, {of.target_id} has {layers} layers"
        raise CheckpointError(f"{of.where} {what}.", hint=ANOTHER)
    return tuple(entries)


def rope_of(config: Mapping[str, Any], default_theta: float = 10_000.0) -> dict[str, Any]:
    """Rotary parameters of a config.json in transformers' present or former spelling."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kinds := [name for name, value in given.items() if isinstance(value, Mapping)]:
        raise ValueError(f"its rotary parameters differ by kind of layer ({kinds[0]}), which is not computed")
    parameters = {name: value for name, value in given.items() if name != "type"}
    parameters.setdefault("rope_type", given.get("type", "default"))
    parameters.setdefault("rope_theta", config.get("rope_theta") or default_theta)
    return parameters


class KindOfStates(Kind):
    """A kind whose memory rows are projected from some of the target's hidden states."""

    reads_states = True
    takes = frozenset({"qkv_bias", "state_entries", "target_hidden_size", "own_heads", "own_head_dim", "head_norms"})

    # The device's half begins with what it projects states to.
    server_tensors = ("fc.", "fc_norm.", "input_norm.", "hidden_norm.")

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {f"{self.name} must read the states of layers (state_entries)": bool(config.state_entries)}

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        arithmetic = Arithmetic.of(weights, (config.state_width, config.hidden_size))

        def normed(rows: Rows, weight: Rows) -> Rows:
            return arithmetic.norm(np.ascontiguousarray(rows), weight, config.rms_norm_eps)

        tensors = {name: own.array(name) for name in own.names() if name.startswith(self.server_tensors)}
        linear = arithmetic.linear([tensors[PROJECTION]])
        return _projected(config, tensors, linear, normed, (np.split, np.concatenate))

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        import torch
        from torch.nn import functional as F

        def normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(rows.float(), weight.shape, weight, config.rms_norm_eps).to(dtype)

        norms = {name: tensor.to(device) for name, tensor in tensors.items() if name.startswith(self.server_tensors)}
        projection = norms.pop(PROJECTION).to(dtype)
        return _projected(config, norms, partial(F.linear, weight=projection), normed, (torch.chunk, torch.cat))


def _projected(
    config: DrafterConfig,
    tensors: Mapping[str, Any],
    linear: Callable[[Any], Any],
    normed: Callable[[Any, Any], Any],
    parts: tuple[Callable[..., Any], Callable[..., Any]],
) -> Callable[[Any], Any]:
    """What projects states side by side, by numpy's functions or torch's; `parts`: what splits rows and joins them."""
    split, joined = parts
    before = [tensors["input_norm.weight"]] if config.feature_norm == JOINT else []
    if config.feature_norm == EACH:
        before = [tensors[f"fc_norm.{index}.weight"] for index in range(len(config.state_entries))]

    def project(states: Any) -> Any:
        if before:
            each = zip(split(states, len(before), -1), before, strict=True)
            states = joined([normed(*pair) for pair in each], -1)
        rows = linear(states)
        return normed(rows, tensors[OUT_NORM]) if OUT_NORM in tensors else rows

    return project
