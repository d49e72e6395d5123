"""Tiny models of the families beyond Llama's form, dense and with experts, with all that they do differently from it."""

from typing import Any

import torch
import transformers
from moa_shared.models.network.plan import row_orders
from moa_shared.models.storage.tensors import known_name
from transformers import PreTrainedModel

from tests.support.tiny_models import SIZES, Floats, ModelWeights, TinyModel
from tests.support.torch_models import draw_weights, from_torch

MIXTURE = "mixture: "
WINDOW = 5  # so that every text of a test is longer
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 32,
    "partial_rotary_factor": 1.0, "short_factor": [1.0 + index / 9 for index in range(16)],
    "long_factor": [1.0 + index / 3 for index in range(16)],
}  # fmt: skip
_LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 500.0}
_LINEAR = {"rope_type": "linear", "rope_theta": 9000.0, "factor": 8.0}
_WIDE = {"hidden_size": 128}  # four heads of 32: families that derive the size of a head
_GEMMA = {"query_pre_attn_scalar": 50, "sliding_window": WINDOW, "layer_types": _LAYERS}
_QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
_TWO_LAYERS = ["sliding_attention", "full_attention"]
_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
_GEMMA_4 = {
    "sliding_window": WINDOW, "global_head_dim": 64,
    "rope_parameters": {"full_attention": _PROPORTIONAL, "sliding_attention": _PLAIN},
}  # fmt: skip
_GEMMA_4_WIDE = {
    **_GEMMA_4, "num_hidden_layers": 4, "layer_types": _TWO_LAYERS * 2, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}  # fmt: skip
_PHI_4 = {**_WIDE, "head_dim": None, "pad_token_id": None, "original_max_position_embeddings": 32}
_HYBRID = {
    "num_hidden_layers": 4, "head_dim": 64, "max_position_embeddings": 256, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 64,
    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
}  # fmt: skip
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "ministral": ("Ministral", {"sliding_window": WINDOW, "layer_types": _LAYERS}),
    "ministral 3": ("Ministral3", {"rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    "gemma 2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma 3": ("Gemma3", {**_GEMMA, "rope_parameters": {"full_attention": _LINEAR, "sliding_attention": _PLAIN}}),
    "gemma 4": ("Gemma4Text", {**_GEMMA_4_WIDE, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0}),
    "gemma 4, 12B": ("Gemma4UnifiedText", _GEMMA_4_WIDE),
    "gemma 4 with embeddings by layer": ("Gemma4Text", {
        **_GEMMA_4, "num_hidden_layers": 6, "layer_types": _TWO_LAYERS * 3, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": SIZES["vocab_size"], "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
        "tie_word_embeddings": True,
    }),
    "phi 3": ("Phi3", {**_WIDE, "sliding_window": WINDOW, "pad_token_id": None}),
    "phi 4": ("Phi3", {**_PHI_4, "rope_parameters": _LONGROPE}),
    "smollm 3": ("SmolLM3", {**_WIDE, "no_rope_layers": [1, 0, 1]}),
    "olmo 2": ("Olmo2", _WIDE),
    "olmo 3": ("Olmo3", {
        **_WIDE, "sliding_window": WINDOW, "layer_types": _LAYERS,
        "rope_parameters": {"full_attention": _YARN, "sliding_attention": _PLAIN},
    }),
    "qwen 2 with a window": ("Qwen2", _QWEN_WINDOW),
    "qwen 3 with a window": ("Qwen3", _QWEN_WINDOW),
    "granite": ("Granite", {
        **_WIDE, "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.7, "logits_scaling": 2.0,
    }),
    "qwen 3.5": ("Qwen3_5Text", _HYBRID),
    "olmo hybrid": ("OlmoHybrid", {
        **_HYBRID, **_WIDE, "layer_types": [*["linear_attention", "full_attention"] * 2], "rope_parameters": {**_PLAIN},
    }),
    "olmo hybrid, not rotated": ("OlmoHybrid", {
        **_HYBRID, **_WIDE, "linear_allow_neg_eigval": False, "rope_parameters": {**_PLAIN, "rope_theta": None},
    }),
}  # fmt: skip
DENSE_FAMILIES = tuple(_FAMILIES)
HYBRIDS = ("qwen 3.5", "olmo hybrid", "olmo hybrid, not rotated")
_EARLIEST: dict[str, tuple[str, dict[str, Any]]] = {  # whose form is the kernels' first; here with scaled positions
    "llama": ("Llama", {}),
    "llama 3": ("Llama", {"rope_parameters": _LLAMA_3}),
    "llama, linear": ("Llama", {"rope_parameters": _LINEAR, "tie_word_embeddings": True}),
    "qwen 2": ("Qwen2", {"rope_parameters": {**_YARN, "beta_fast": 20.0, "beta_slow": 2.0}}),
    "qwen 3": ("Qwen3", {"rope_parameters": {**_YARN, "attention_factor": 1.25}}),
    "phi 4 mini": ("Phi3", {**_PHI_4, "hidden_size": 256, "rope_parameters": {**_LONGROPE, "partial_rotary_factor": 0.5}}),
}  # fmt: skip
_IN_GGUF: dict[str, dict[str, Any]] = {  # as llama.cpp's code has it: the file does not say
    "gemma 2": {"query_pre_attn_scalar": SIZES["head_dim"]},
    "gemma 3": {"query_pre_attn_scalar": SIZES["head_dim"], "num_hidden_layers": 7, "layer_types": None},
    "smollm 3": {"num_hidden_layers": 5, "no_rope_layers": None},
    "mistral": {"sliding_window": None},
    "mixture: gpt-oss": {"swiglu_limit": 7.0},
    "mixture: qwen 3 next": {"mlp_only_layers": []},
}
_FOLDERS_ALONE = (
    "ministral",
    "qwen 2 with a window",
    "qwen 3 with a window",
    *HYBRIDS[1:],
)
GGUF_FAMILIES = (*_EARLIEST, *(name for name in DENSE_FAMILIES if name not in _FOLDERS_ALONE))


def tiny_in_gguf(family: str) -> PreTrainedModel:
    """A model of a family, or of a mixture's, as llama.cpp's converter can write it."""
    make = tiny_mixture if family.startswith(MIXTURE) else tiny_dense
    return make(family.removeprefix(MIXTURE), **_IN_GGUF.get(family, {}))


@torch.no_grad()
def soften_scores(model: PreTrainedModel) -> None:
    """Norms of queries as small as a Gemma 4 has learned them, whose scores have no scale of their own."""
    for name, parameter in model.named_parameters():
        if name.endswith("q_norm.weight"):
            parameter *= len(parameter) ** -0.5


def tiny_dense(family: str, **changes: Any) -> PreTrainedModel:
    """A model of a family, with eager attention, which computes soft caps."""
    name, own = (_FAMILIES | _EARLIEST)[family]
    sizes = {**SIZES, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **own, **changes}
    if (sizes["hidden_size"] >= 128 and "Phi3" in name) or name == "OlmoHybrid":
        sizes.pop("head_dim")
    config_class = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    name = name.removesuffix("Text")
    transformers.set_seed(3)
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(
        config_class(**sizes, attn_implementation="eager")
    )
    draw_weights(model)
    if "Gemma4" in name:
        soften_scores(model)
    return model.eval().requires_grad_(False)


_MIXED_YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
_QWEN = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
_OLMOE = {"hidden_size": 128, "num_experts": 6, "num_experts_per_tok": 3}
_MIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen 3": ("Qwen3Moe", _QWEN),
    "qwen 3, weighed over all": ("Qwen3Moe", {**_QWEN, "norm_topk_prob": False}),
    "qwen 3 with dense layers": ("Qwen3Moe", {**_QWEN, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "qwen 3 with a window": ("Qwen3Moe", {**_QWEN, "use_sliding_window": True, "sliding_window": WINDOW}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral with a window": ("Mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "olmoe": ("Olmoe", {**_OLMOE, "norm_topk_prob": False}),
    "olmoe with clips": ("Olmoe", {**_OLMOE, "clip_qkv": 0.75}),
    "gemma 4": ("Gemma4Text", {
        **_GEMMA_4_WIDE, "enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 32,
        "hidden_size_per_layer_input": 0, "tie_word_embeddings": False,
    }),
    "qwen 3.5": ("Qwen3_5MoeText", {**_QWEN, **_HYBRID, "shared_expert_intermediate_size": 64}),
    "qwen 3 next": ("Qwen3Next", {
        **_QWEN, **_HYBRID, "shared_expert_intermediate_size": 64, "num_hidden_layers": 5, "mlp_only_layers": [1],
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    }),
    "gpt-oss": ("GptOss", {
        "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": WINDOW, "rope_parameters": _MIXED_YARN,
        "swiglu_limit": 0.6,
    }),
}  # fmt: skip
MIXTURES, HYBRID_MIXTURES = tuple(_MIXED), ("qwen 3.5", "qwen 3 next")


def tiny_mixture(family: str, **changes: Any) -> PreTrainedModel:
    """A model of a family, whose rows choose different experts."""
    name, own = _MIXED[family]
    sizes = {**SIZES, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **own, **changes}
    if name == "Olmoe":
        sizes.pop("head_dim")
    transformers.set_seed(3)
    model: PreTrainedModel = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**sizes, attn_implementation="eager", experts_implementation="eager")
    )
    draw_weights(model)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 3:
                axis = 1 if name == "GptOss" else 2
                parameter.normal_(0.0, parameter.shape[axis] ** -0.5)
            elif "router" in parameter_name and "scale" in parameter_name:
                parameter.normal_(1.0, 0.1)
                if parameter_name.endswith("router.scale"):
                    parameter *= 4  # Gemma 4 takes it over the root of the width
            elif "gate.weight" in parameter_name or "router" in parameter_name or "sinks" in parameter_name:
                parameter.normal_(0.0, 0.5)
    if name == "Gemma4Text":
        soften_scores(model)
    return model.eval().requires_grad_(False)


def weights_of(model: PreTrainedModel, packed: tuple[str, ...] = ()) -> ModelWeights:
    """The tensors of any model by the names that layers are read by: matrices of one expert each, and of one part."""
    made = from_torch(model)
    turned, orders = model.config.model_type == "gpt_oss", row_orders(made.config)
    tensors: dict[str, Floats] = {}
    for own, tensor in made.tensors.items():
        prefix, dot, stem = (name := known_name(own)).partition("_attn.")
        if stem in orders:
            tensors |= {f"{prefix}{dot}{part}": tensor[rows] for part, rows in orders[stem].items()}
        else:
            tensors |= _apart(name, tensor, turned=turned) if ".experts." in name else {name: tensor}
    return ModelWeights(TinyModel(made.config, tensors), packed)


def _apart(name: str, tensor: Floats, *, turned: bool) -> dict[str, Floats]:
    """One tensor of all experts as one for each; `turned`: gpt-oss's, [inputs, outputs], gate and up in turn."""
    prefix, stem = name.rsplit(".", 1)
    kind = "bias" if stem.endswith("_bias") else "weight"
    found = {}
    for number, own in enumerate(tensor):
        outputs = own.T if turned and kind == "weight" else own
        if stem.startswith("gate_up"):
            half = len(outputs) // 2
            gate, up = (outputs[::2], outputs[1::2]) if turned else (outputs[:half], outputs[half:])
            found[f"{prefix}.{number}.gate_proj.{kind}"], found[f"{prefix}.{number}.up_proj.{kind}"] = gate, up
        else:
            found[f"{prefix}.{number}.down_proj.{kind}"] = outputs
    return found
