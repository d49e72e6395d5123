"""The families of models that are served, a row each: what they compute, on which levels, and what GGUF calls them.

Sizes and factors are in a model's own config.json, and names of tensors are transformers'. Sources of what is said of
GGUF: llama.cpp's converter and `src/models`. Invariant: a family that is described is computed as transformers computes
it in float32, from whichever file; a test holds each of them to that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moa_kernels.transformer.layer import CLAMPED_SWIGLU, GELU_TANH, SILU

from moa_shared.models.storage import gguf_keys as keys
from moa_shared.models.storage.gguf_header import GgufHeader
from moa_shared.models.storage.gguf_keys import FULL, SLIDING, Config


@dataclass(frozen=True, slots=True)
class Norms:
    """The modules of a layer that hold the norms of what attention and MLP read and add; None: it has none there."""

    attention: str | None = "input_layernorm"
    mlp: str | None = "post_attention_layernorm"
    attention_out: str | None = None
    mlp_out: str | None = None


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the layers of a family with experts choose them, and the keys of config.json that say more."""

    inner: str = "intermediate_size"  # for an expert's width
    weighs_chosen: bool = False  # by a softmax over the chosen experts' scores; else where `norm_topk_prob` says so
    chosen: str = "num_experts_per_tok"  # for how many a row has
    switch: str = ""  # that says whether a model has any; empty: all of the family have
    beside: bool = False  # they stand beside an MLP, whose width is the usual key's
    count: str = "num_experts"  # for how many there are
    shared: str = ""  # for the width of an expert that all rows have; empty: there is none


@dataclass(frozen=True, slots=True)
class DeltaNets:
    """The layers of a family with gated delta nets in place of attention: linear ones, by `layer_types`.

    Their norms are where Llama's layers have them.
    """

    eps: float = 0.0  # of the norm of what is read; 0: the model's
    flips: str = ""  # key of config.json that lets betas reach 2; empty: they reach 1


@dataclass(frozen=True, slots=True)
class Gguf:
    """A family in GGUF files."""

    architecture: str  # llama.cpp's name, which several families may share
    keys: Callable[[GgufHeader, Config], dict[str, Any]] = lambda header, config: {}  # that not all config.json have
    fits: Callable[[GgufHeader], bool] | None = None  # files of the architecture; None: those of no other family
    pairs_heads: bool = False  # rows of queries and keys are paired for llama.cpp's rotary positions
    head_norms: bool = False  # of queries and keys
    # Tensors that others lack or call otherwise, by transformers' names within a layer, or from "model." on; "": none.
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. Biases, and norms of queries and keys, are computed wherever a layer has them."""

    norms: Norms = Norms()
    activation: str = SILU
    norm_offset: float = 0.0  # is added to the weights of norms (Gemma stores them less 1)
    fused: bool = False  # queries, keys and values are one projection, gate and up another
    scales_embeddings: bool = False  # by the root of the hidden size
    # Layers whose number, from 1, is no multiple see a window where `layer_types` does not say; 0: all, where the
    # configuration names a window; None: none. And those whose number is a multiple are not rotated.
    window_every: int | None = None
    no_rotary_every: int = 0
    defaults: Mapping[str, object] = field(default_factory=dict)  # keys that its config.json may leave out
    needed: tuple[str, ...] = ()  # tensors of a layer that other families may lack
    mixture: Mixture | None = None  # of its layers, or of those that the configuration names
    value_norm: bool = False  # values are normed head by head, without weights
    layers_differ: bool = False  # in heads, width of the MLP, and whose keys they read
    score_scale: float = 0.0  # of attention; 0: as the configuration says, else one over the root of a head's size
    torch: bool = False  # float32 and bf16 compute it: its layers are transformers' own, over attention in pages
    delta_nets: DeltaNets | None = None  # of some layers
    output_gate: bool = False  # attention's output is gated; projections of queries have gates behind each head
    gguf: Gguf | None = None  # None: it is not read from GGUF files


_AFTER = Norms(None, None, "post_attention_layernorm", "post_feedforward_layernorm")
_AROUND = Norms(
    "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
)
_HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_BIASES = tuple(f"self_attn.{each}_proj.bias" for each in "qkv")
_SINKS = ("self_attn.sinks", "self_attn.q_proj.bias", "self_attn.o_proj.bias", "mlp.gate.bias")
_GEMMA = Family(
    _AROUND,
    GELU_TANH,
    norm_offset=1.0,
    scales_embeddings=True,
    torch=True,
    defaults={"rms_norm_eps": 1e-6, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096},
)
_GEMMA_4 = Family(
    _AROUND,
    GELU_TANH,
    scales_embeddings=True,
    window_every=6,
    value_norm=True,
    layers_differ=True,
    score_scale=1.0,
    needed=_HEAD_NORMS,
    defaults={
        "rms_norm_eps": 1e-6,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
    },
)
_QWEN_HYBRID = Family(
    norm_offset=1.0,
    needed=_HEAD_NORMS,
    delta_nets=DeltaNets(),
    output_gate=True,
    defaults={
        "rms_norm_eps": 1e-6, "head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    },
    gguf=Gguf("qwen35", keys.hybrid, head_norms=True, renamed=keys.HYBRID_TENSORS),
)  # fmt: skip
_QWEN_HYBRID_MIXTURE = {
    **_QWEN_HYBRID.defaults, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
FAMILIES = {
    "llama": Family(torch=True, gguf=Gguf("llama", pairs_heads=True)),
    "qwen2": Family(needed=_BIASES, torch=True, gguf=Gguf("qwen2")),
    "qwen3": Family(needed=_HEAD_NORMS, torch=True, gguf=Gguf("qwen3", head_norms=True)),
    "mistral": Family(
        window_every=0,
        torch=True,
        gguf=Gguf("mistral3", lambda header, config: {"sliding_window": None}, pairs_heads=True),
    ),
    "ministral": Family(window_every=0),
    "ministral3": Family(
        window_every=0,
        gguf=Gguf(
            "mistral3",
            keys.ministral3,
            fits=lambda header: bool(header.positive("attention.temperature_scale")),
            pairs_heads=True,
        ),
    ),
    "gemma2": replace(
        _GEMMA,
        window_every=2,
        defaults={**_GEMMA.defaults, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        gguf=Gguf("gemma2", keys.gemma2),
    ),
    "gemma3_text": replace(
        _GEMMA,
        window_every=6,
        needed=_HEAD_NORMS,
        defaults={**_GEMMA.defaults, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
        gguf=Gguf("gemma3", keys.gemma3, head_norms=True),
    ),
    "gemma4_text": replace(
        _GEMMA_4,
        defaults={**_GEMMA_4.defaults, "sliding_window": 512},
        mixture=Mixture("moe_intermediate_size", True, "top_k_experts", "enable_moe_block", beside=True),
        gguf=Gguf("gemma4", keys.gemma4, head_norms=True, renamed=keys.GEMMA_4_TENSORS),
    ),
    "gemma4_unified_text": _GEMMA_4,
    "phi3": Family(fused=True, window_every=0, torch=True, gguf=Gguf("phi3", keys.phi3)),
    "smollm3": Family(
        no_rotary_every=4,
        defaults={"rope_theta": 2000000.0},
        torch=True,
        gguf=Gguf("smollm3", pairs_heads=True),
    ),
    "olmo2": Family(
        _AFTER, needed=_HEAD_NORMS, defaults={"rope_theta": 500000.0}, torch=True, gguf=Gguf("olmo2", head_norms=True)
    ),
    "olmo3": Family(
        _AFTER,
        window_every=4,
        needed=_HEAD_NORMS,
        defaults={"rope_theta": 500000.0, "sliding_window": 4096},
        torch=True,
        gguf=Gguf("olmo2", keys.olmo3, fits=lambda header: keys.window(header) > 0, head_norms=True),
    ),
    "granite": Family(torch=True, gguf=Gguf("granite", keys.granite, pairs_heads=True)),
    "qwen3_moe": Family(
        needed=_HEAD_NORMS,
        mixture=Mixture("moe_intermediate_size"),
        defaults={"num_experts_per_tok": 8},
        gguf=Gguf("qwen3moe", keys.qwen3_moe, head_norms=True),
    ),
    "mixtral": Family(
        window_every=0,
        mixture=Mixture(weighs_chosen=True, count="num_local_experts"),
        defaults={"num_experts_per_tok": 2},
        gguf=Gguf("llama", fits=lambda header: bool(header.integer("expert_count")), pairs_heads=True),
    ),
    "olmoe": Family(
        needed=_HEAD_NORMS,
        mixture=Mixture(),
        defaults={"num_experts_per_tok": 8, "rms_norm_eps": 1e-5},
        gguf=Gguf("olmoe", keys.olmoe, head_norms=True),
    ),
    "gpt_oss": Family(
        activation=CLAMPED_SWIGLU,
        window_every=2,
        needed=(*_SINKS, *(f"mlp.experts.0.{each}_proj.bias" for each in ("gate", "up", "down"))),
        mixture=Mixture(weighs_chosen=True, count="num_local_experts"),
        defaults={"num_experts_per_tok": 4, "rope_theta": 150000.0, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        gguf=Gguf(
            "gpt-oss",
            keys.gpt_oss,
            renamed={
                "post_attention_norm.weight": "post_attention_layernorm.weight",
                "ffn_norm.weight": "",
                "attn_sinks.weight": "self_attn.sinks.weight",
            },
        ),
    ),
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe_text": replace(
        _QWEN_HYBRID,
        mixture=Mixture("moe_intermediate_size", weighs_chosen=True, shared="shared_expert_intermediate_size"),
        # Layers have no MLP, whose width configurations leave out.
        defaults={**_QWEN_HYBRID_MIXTURE, "num_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 512},
        gguf=Gguf("qwen35moe", keys.hybrid, head_norms=True, renamed=keys.HYBRID_TENSORS),
    ),
    "qwen3_next": replace(
        _QWEN_HYBRID,
        mixture=Mixture("moe_intermediate_size", shared="shared_expert_intermediate_size"),
        defaults={**_QWEN_HYBRID_MIXTURE, "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True},
        gguf=Gguf("qwen3next", keys.hybrid, head_norms=True, renamed=keys.HYBRID_TENSORS),
    ),
    "olmo_hybrid": Family(
        _AFTER,
        needed=_HEAD_NORMS,
        delta_nets=DeltaNets(eps=1e-5, flips="linear_allow_neg_eigval"),
        defaults={"rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True},
    ),
}
EARLIEST = ("llama", "qwen2", "qwen3")  # whose layers are of Llama's form, and alike where there are no windows


def gguf_family(header: GgufHeader) -> tuple[str, Family, Gguf]:
    """The family of a file, by transformers' name."""
    known = [(name, each, each.gguf) for name, each in FAMILIES.items() if each.gguf is not None]
    found = [row for row in known if row[2].architecture == header.architecture]
    for row in sorted(found, key=lambda row: row[2].fits is None):
        if row[2].fits is None or row[2].fits(header):
            return row
    names = dict.fromkeys(gguf.architecture for _, _, gguf in known)
    what = f"is of the model family {header.architecture!r}, which moa does not read from GGUF"
    raise header.wrong(what, f"Choose a model of one of the families {', '.join(names)}.")
