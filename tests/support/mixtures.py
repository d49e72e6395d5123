"""Tiny mixtures of experts of all families that are served, with all that they do differently from dense models."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from moa_shared.models.tensors import known_name
from transformers import PreTrainedModel

from tests.support.dense_families import soften_scores
from tests.support.tiny_models import SIZES, Floats, ModelWeights, TinyModel
from tests.support.torch_models import draw_weights, from_torch

WINDOW = 5  # so that every text of a test is longer
_YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
_QWEN = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen 3": ("Qwen3Moe", {**_QWEN, "norm_topk_prob": True}),
    "qwen 3, weighed over all": ("Qwen3Moe", {**_QWEN, "norm_topk_prob": False}),
    "qwen 3 with dense layers": (
        "Qwen3Moe",
        {**_QWEN, "norm_topk_prob": True, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen 3 with a window": ("Qwen3Moe", {**_QWEN, "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": WINDOW}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral with a window": ("Mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "olmoe": ("Olmoe", {"hidden_size": 128, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "olmoe with clips": (
        "Olmoe", {"hidden_size": 128, "num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 0.75},
    ),
    "gemma 4": (
        "Gemma4Text",
        {
            "enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 32,
            "hidden_size_per_layer_input": 0, "global_head_dim": 64, "sliding_window": WINDOW, "tie_word_embeddings": False,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": WINDOW, "rope_parameters": _YARN,
            "swiglu_limit": 0.6,
        },
    ),
}  # fmt: skip
MIXTURES = tuple(_FAMILIES)


def tiny_mixture(family: str, **changes: Any) -> PreTrainedModel:
    """A model of a family, whose rows choose different experts."""
    name, own = _FAMILIES[family]
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
    """The tensors of any model by the names that layers are read by: matrices of one expert each."""
    made = from_torch(model)
    turned = model.config.model_type == "gpt_oss"
    tensors: dict[str, Floats] = {}
    for own, tensor in made.tensors.items():
        name = known_name(own)
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
