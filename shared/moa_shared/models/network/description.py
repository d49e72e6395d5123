"""What the families differ in, a description each; sizes and factors are in a model's own config.json.

Pure data. The names of tensors are transformers'. Invariant: a family that is described is computed as transformers
computes it in float32; a test holds each of them to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moa_kernels.transformer.layer import CLAMPED_SWIGLU, GELU_TANH, SILU


@dataclass(frozen=True, slots=True)
class Norms:
    """The modules of a layer that hold its norms; None: it has none there.

    Args:
        attention, mlp: of what they read.
        attention_out, mlp_out: of what they add to the rows.
    """

    attention: str | None = "input_layernorm"
    mlp: str | None = "post_attention_layernorm"
    attention_out: str | None = None
    mlp_out: str | None = None


BEFORE = Norms()
AFTER = Norms(None, None, "post_attention_layernorm", "post_feedforward_layernorm")
AROUND = Norms("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the layers of a family with experts choose them.

    Args:
        inner: the key of config.json for an expert's width.
        weighs_chosen: weights are a softmax over the chosen experts' scores; False: only where `norm_topk_prob` says
            so, else over all.
        chosen: the key for how many a row has.
        switch: the key that says whether a model has any; empty: all of the family have.
        beside: they stand beside an MLP, whose width is the usual key's.
    """

    inner: str = "intermediate_size"
    weighs_chosen: bool = False
    chosen: str = "num_experts_per_tok"
    switch: str = ""
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """One family. Biases, and norms of queries and keys, are computed wherever a layer has them.

    Args:
        norm_offset: what is added to the weights of norms (Gemma stores them less 1).
        fused: queries, keys and values are one projection, gate and up another.
        scales_embeddings: by the root of the hidden size.
        window_every: each layer whose number is not a multiple of this (from 1) sees a window, where `layer_types` does
            not say; 0: where the configuration names a window, all layers have it; None: none has.
        no_rotary_every: each layer whose number is a multiple of this is not rotated, where `no_rope_layers` does not
            say.
        defaults: keys that the family's config.json may leave out.
        needed: tensors that a layer must have, of those that other families' layers may have.
        mixture: its MLPs are mixtures of experts, in all layers or in those that the configuration names.
        value_norm: values are normed head by head, without weights.
        layers_differ: in their heads, the width of their MLP, and in whose keys and values they read; and each may have
            an embedding of its own (`layer_sizes.py`).
        score_scale: of attention's scores; 0: as the configuration says, else one over the root of a head's size.
    """

    norms: Norms = BEFORE
    activation: str = SILU
    norm_offset: float = 0.0
    fused: bool = False
    scales_embeddings: bool = False
    window_every: int | None = None
    no_rotary_every: int = 0
    defaults: Mapping[str, object] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    mixture: Mixture | None = None
    value_norm: bool = False
    layers_differ: bool = False
    score_scale: float = 0.0


_HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_SINKS = ("self_attn.sinks", "self_attn.q_proj.bias", "self_attn.o_proj.bias", "mlp.gate.bias")
_GEMMA_4_ANGLES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_GEMMA = {"rms_norm_eps": 1e-6, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_GEMMA_4 = Description(
    AROUND,
    GELU_TANH,
    scales_embeddings=True,
    window_every=6,
    value_norm=True,
    layers_differ=True,
    score_scale=1.0,
    needed=_HEAD_NORMS,
    mixture=Mixture("moe_intermediate_size", True, "top_k_experts", "enable_moe_block", beside=True),
    defaults={
        "rms_norm_eps": 1e-6,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "rope_parameters": _GEMMA_4_ANGLES,
    },
)
FAMILIES = {
    "llama": Description(),
    "qwen2": Description(),
    "qwen3": Description(),
    "mistral": Description(window_every=0),
    "ministral": Description(window_every=0),
    "ministral3": Description(window_every=0),
    "gemma2": Description(
        AROUND,
        GELU_TANH,
        norm_offset=1.0,
        scales_embeddings=True,
        window_every=2,
        defaults=_GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": Description(
        AROUND,
        GELU_TANH,
        norm_offset=1.0,
        scales_embeddings=True,
        window_every=6,
        defaults=_GEMMA | {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    ),
    "gemma4_text": _GEMMA_4,
    "gemma4_unified_text": replace(_GEMMA_4, mixture=None, defaults={**_GEMMA_4.defaults, "sliding_window": 1024}),
    "phi3": Description(fused=True, window_every=0),
    "smollm3": Description(no_rotary_every=4, defaults={"rope_theta": 2000000.0}),
    "olmo2": Description(AFTER, defaults={"rope_theta": 500000.0}),
    "olmo3": Description(AFTER, window_every=4, defaults={"rope_theta": 500000.0, "sliding_window": 4096}),
    "granite": Description(),
    "qwen3_moe": Description(
        needed=_HEAD_NORMS, mixture=Mixture("moe_intermediate_size"), defaults={"num_experts_per_tok": 8}
    ),
    "mixtral": Description(window_every=0, mixture=Mixture(weighs_chosen=True), defaults={"num_experts_per_tok": 2}),
    "olmoe": Description(
        needed=_HEAD_NORMS, mixture=Mixture(), defaults={"num_experts_per_tok": 8, "rms_norm_eps": 1e-5}
    ),
    "gpt_oss": Description(
        activation=CLAMPED_SWIGLU,
        window_every=2,
        needed=(*_SINKS, "mlp.experts.0.gate_proj.bias", "mlp.experts.0.down_proj.bias"),
        mixture=Mixture(weighs_chosen=True),
        defaults={"num_experts_per_tok": 4, "rope_theta": 150000.0, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    ),
}
EARLIEST = ("llama", "qwen2", "qwen3")  # whose layers are of Llama's form, and alike where there are no windows
