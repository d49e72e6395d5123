"""Drafters in the layouts in which their authors publish them, with small random tensors, for a tiny Llama 3."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.support.families import WINDOW, soften_scores, tiny_dense
from tests.support.tiny_models import END, SIZES, save_tokenizer
from tests.support.torch_models import draw_weights, rewrite, torch_model

THETA = 500_000.0
LLAMA3: dict[str, Any] = {
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    "tie_word_embeddings": False, "eos_token_id": END, "max_position_embeddings": 256,
}  # fmt: skip
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = (
    SIZES[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
)
QUERIES, KEYS, WIDTH = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, 2 * KV_HEADS * HEAD_DIM
COMMON: dict[str, Any] = {
    "hidden_act": "silu", "hidden_size": HIDDEN, "num_attention_heads": HEADS, "rms_norm_eps": 1e-5,
    "vocab_size": SIZES["vocab_size"],
}  # fmt: skip
EAGLE_CONFIG: dict[str, Any] = COMMON | {  # the keys of yuhuili/EAGLE-LLaMA3-Instruct-8B
    "architectures": ["LlamaForCausalLM"], "bias": False, "bos_token_id": 1, "eos_token_id": END,
    "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 256, "model_type": "llama",
    "num_hidden_layers": 1, "num_key_value_heads": KV_HEADS, "pad_token_id": 0, "rope_scaling": None,
    "rope_theta": THETA, "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
}  # fmt: skip
MOA_CONFIG: dict[str, Any] = COMMON | {  # the keys of huawei-noah/MOASpec-Llama-3-8B-Instruct
    "architectures": ["MOASpecModel"], "cross_attention_intermediate_size": 64,
    "cross_attention_num_key_value_heads": 1, "disable_LSA": False, "kv_hidden_size": WIDTH,
    "layer_self_attention_intermediate_size": 32, "layer_self_attention_num_key_value_heads": 2,
    "model_type": "moa_spec", "rope_scaling": None, "rope_theta": THETA, "self_attention_intermediate_size": 64,
    "self_attention_num_key_value_heads": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
EAGLE3_VOCAB, EAGLE3_MLP = 40, 160
EAGLE3_SIZES = {  # the keys of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, but three
    name: value for name, value in EAGLE_CONFIG.items() if name not in ("bias", "rope_scaling", "rope_theta")
} | {"intermediate_size": EAGLE3_MLP}
EAGLE3_CONFIG: dict[str, Any] = EAGLE3_SIZES | {
    "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": EAGLE3_VOCAB,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
}  # fmt: skip
SPECULATORS_CONFIG: dict[str, Any] = {  # the keys of RedHatAI/Qwen3-8B-speculator.eagle3
    "architectures": ["Eagle3Speculator"], "draft_vocab_size": EAGLE3_VOCAB, "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "speculators_model_type": "eagle3", "target_hidden_size": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformer_layer_config": EAGLE3_SIZES,
}  # fmt: skip
DFLASH_LAYERS = 2
DFLASH_CONFIG: dict[str, Any] = COMMON | {  # the keys of z-lab/Qwen3-8B-DFlash-b16
    "architectures": ["DFlashDraftModel"], "attention_bias": False, "block_size": 6, "head_dim": HEAD_DIM,
    "dflash_config": {"mask_token_id": SIZES["vocab_size"] - 2, "target_layer_ids": [0, 2]}, "dtype": "bfloat16",
    "intermediate_size": 96, "layer_types": ["full_attention"] * 2, "model_type": "qwen3", "rope_theta": THETA,
    "num_hidden_layers": DFLASH_LAYERS, "num_key_value_heads": KV_HEADS, "sliding_window": None,
    "num_target_layers": SIZES["num_hidden_layers"], "use_sliding_window": False,
}  # fmt: skip
Tensors = dict[str, torch.Tensor]


def llama3_model() -> Any:
    """A tiny target with what Llama 3 has: grouped queries, its theta, a head of its own."""
    return torch_model(**LLAMA3)


def save_llama3(folder: Path) -> Path:
    """The same on disk; it does not end greedy text by itself."""
    model = llama3_model()
    with torch.no_grad():
        model.lm_head.weight[END] = 0.0
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def eagle_tensors(**changes: torch.Tensor) -> Tensors:
    """The ten tensors of an EAGLE-2 checkpoint, in float16 as they are published."""
    tensors = {
        "embed_tokens.weight": llama3_model().model.embed_tokens.weight.detach(),
        "fc.weight": _matrix(HIDDEN, 2 * HIDDEN, 1),
        **eagle_layer("layers.0", HIDDEN, QUERIES, KEYS, 96, 2),
    }
    return {name: tensor.half().clone() for name, tensor in (tensors | changes).items()}


def moa_tensors(**changes: torch.Tensor) -> Tensors:
    """The 29 tensors of a Mixture of Attentions checkpoint, in bfloat16 as they are published."""
    tensors = {"Ekv2E.weight": _matrix(HIDDEN, WIDTH, 1), "Ekv2E.bias": _norm(HIDDEN, 2) - 1}
    sizes = {
        "layer_self_attention": (WIDTH, WIDTH, 2 * (WIDTH // HEADS), 32),
        "self_attention": (HIDDEN, QUERIES, HEAD_DIM, 64),
        "cross_attention": (HIDDEN, QUERIES, HEAD_DIM, 64),
    }
    for seed, (name, shape) in enumerate(sizes.items(), start=3):
        tensors |= eagle_layer(name, *shape, seed) | {f"{name}.input_layernorm.weight": _norm(shape[0], 10 + seed)}
    return {name: tensor.bfloat16().clone() for name, tensor in (tensors | changes).items()}


def eagle3_tensors(
    changes: Mapping[str, torch.Tensor | None] | None = None,
    *,
    layer: str = "midlayer",
    states: int = 3,
    hidden: int = HIDDEN,
) -> Tensors:
    """The tensors of an EAGLE-3 checkpoint, in float16.

    `changes`: other tensors, None takes one out; `layer`: what its one layer is called; `states`: of the target that it
    reads; `hidden`: its own width.
    """
    tensors: dict[str, torch.Tensor | None] = {
        "fc.weight": _matrix(hidden, states * HIDDEN, 1),
        **eagle_layer(layer, hidden, QUERIES, KEYS, EAGLE3_MLP, 2),
        "norm.weight": _norm(hidden, 7),
        "lm_head.weight": _matrix(EAGLE3_VOCAB, hidden, 8),
    }
    for seed, (part, outputs) in enumerate({"q": QUERIES, "k": KEYS, "v": KEYS}.items()):
        tensors[f"{layer}.self_attn.{part}_proj.weight"] = _matrix(outputs, 2 * hidden, 20 + seed)
    tensors |= {f"{layer}.{name}.weight": _norm(hidden, 30) for name in ("input_layernorm", "hidden_norm")}
    ids = 2 * torch.arange(EAGLE3_VOCAB) + 1
    tensors |= {"d2t": ids - torch.arange(EAGLE3_VOCAB), "t2d": torch.isin(torch.arange(SIZES["vocab_size"]), ids)}
    merged = (tensors | dict(changes or {})).items()
    kept = {name: tensor for name, tensor in merged if tensor is not None}
    return {name: (each.half() if each.is_floating_point() else each).clone() for name, each in kept.items()}


def dflash_tensors() -> Tensors:
    """The tensors of a DFlash checkpoint, in bfloat16."""
    tensors = {"fc.weight": _matrix(HIDDEN, 2 * HIDDEN, 1), "hidden_norm.weight": _norm(HIDDEN, 2)}
    tensors["norm.weight"] = _norm(HIDDEN, 3)
    for layer in range(DFLASH_LAYERS):
        name = f"layers.{layer}"
        tensors |= eagle_layer(name, HIDDEN, QUERIES, KEYS, 96, 4 + layer)
        tensors |= {f"{name}.self_attn.{part}_norm.weight": _norm(HEAD_DIM, 10 + layer) for part in "qk"}
        tensors[f"{name}.input_layernorm.weight"] = _norm(HIDDEN, 20 + layer)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def mtp_tensors() -> Tensors:
    """A multi-token-prediction head as GLM and DeepSeek have it: one more layer of the model."""
    layer = f"model.layers.{SIZES['num_hidden_layers']}"
    tensors = {
        **eagle_layer(layer, HIDDEN, QUERIES, KEYS, 96, 40),
        f"{layer}.eh_proj.weight": _matrix(HIDDEN, 2 * HIDDEN, 41),
    }
    norms = ("input_layernorm", "enorm", "hnorm", "shared_head.norm")
    return tensors | {f"{layer}.{norm}.weight": _norm(HIDDEN, 42 + seed) for seed, norm in enumerate(norms)}


def publish(folder: Path, tensors: Tensors, config: dict[str, Any], *, pickled: bool = False, shards: int = 1) -> Path:
    """Writes a checkpoint as the hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    single, write = ("pytorch_model.bin", torch.save) if pickled else ("model.safetensors", save_file)
    if shards == 1:
        write(tensors, folder / single)
        return folder
    stem, _, ending = single.partition(".")
    places = {name: f"{stem}-{index % shards + 1:05}-of-{shards:05}.{ending}" for index, name in enumerate(tensors)}
    for file in set(places.values()):
        write({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / f"{single}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def publish_eagle(folder: Path, **how: Any) -> Path:
    """As yuhuili/EAGLE-LLaMA3-Instruct-8B: config.json and pytorch_model.bin."""
    return publish(folder, eagle_tensors(), EAGLE_CONFIG, **{"pickled": True, **how})


def publish_moa(folder: Path) -> Path:
    """As huawei-noah/MOASpec-Llama-3-8B-Instruct: config.json and model.safetensors."""
    return publish(folder, moa_tensors(), MOA_CONFIG)


def publish_eagle3(folder: Path, **how: Any) -> Path:
    """As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: config.json and pytorch_model.bin, no embeddings."""
    return publish(folder, eagle3_tensors(), EAGLE3_CONFIG, **{"pickled": True, **how})


def publish_speculator(folder: Path) -> Path:
    """As RedHatAI/Qwen3-8B-speculator.eagle3: nested sizes, and a copy of the target's embeddings."""
    embeddings = llama3_model().model.embed_tokens.weight.detach()
    return publish(folder, eagle3_tensors({"embed_tokens.weight": embeddings}, layer="layers.0"), SPECULATORS_CONFIG)


def publish_dflash(folder: Path) -> Path:
    """As z-lab/Qwen3-8B-DFlash-b16: config.json and model.safetensors."""
    return publish(folder, dflash_tensors(), DFLASH_CONFIG)


def publish_mtp(folder: Path) -> Path:
    """In the model next to that folder; how --drafter names it."""
    [model] = folder.parent.glob("tiny-*")
    rewrite(model, **mtp_tensors())
    return Path("mtp")


SHARING = "gemma 4 with embeddings by layer"  # whose last layers have no keys and values


def save_gemma4(folder: Path) -> Path:
    """A tiny Gemma 4 like E2B; it does not end greedy text by itself."""
    model = tiny_dense(SHARING, vocab_size=96, vocab_size_per_layer_input=96, max_position_embeddings=256)
    with torch.no_grad():
        model.lm_head.weight[END] = 0.0
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def publish_assistant(folder: Path) -> Path:
    """As google/gemma-4-E2B-it-assistant: config.json and model.safetensors, with clusters of tokens."""
    model = tiny_dense(SHARING, vocab_size=96, vocab_size_per_layer_input=96)
    tiny_assistant(model, clusters=8).save_pretrained(folder)
    return folder


@torch.no_grad()
def tiny_assistant(target: PreTrainedModel, clusters: int = 0, **changes: Any) -> Any:
    """An assistant for a tiny Gemma 4, with eager attention. `clusters`: of its tokens; 0: none."""
    theirs, name = target.config.to_dict(), type(target.config).__name__.removesuffix("TextConfig")
    own = theirs["per_layer_config"][str(len(theirs["layer_types"]) - 1)]
    text = {key: theirs[key] for key in ("vocab_size", "rope_parameters", "rms_norm_eps", "max_position_embeddings")} | {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": theirs["head_dim"],
        "global_head_dim": own["head_dim"], "num_key_value_heads": theirs["num_key_value_heads"], "attention_k_eq_v": True,
        "num_global_key_value_heads": own.get("num_key_value_heads", theirs["num_key_value_heads"]), "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "num_kv_shared_layers": 3,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size_per_layer_input": 0,
        "hidden_size_per_layer_input": 0, **changes,
    }  # fmt: skip
    transformers.set_seed(5)
    config = getattr(transformers, f"{name}AssistantConfig")(
        text_config=getattr(transformers, f"{name}TextConfig")(**text, attn_implementation="eager"),
        backbone_hidden_size=theirs["hidden_size"],
        use_ordered_embeddings=clusters > 0,
        num_centroids=clusters or 2048,
        centroid_intermediate_top_k=5,
        attn_implementation="eager",
    )
    model = getattr(transformers, f"{name}AssistantForCausalLM")(config)
    draw_weights(model)
    soften_scores(model)
    model.lm_head.weight *= torch.exp(torch.randn(text["vocab_size"], 1))  # some tokens are likely, most are not
    if clusters:
        model.masked_embedding.token_ordering.copy_(torch.randperm(text["vocab_size"]))
    return model.eval().requires_grad_(False)


def _kv_sharing_modes(config: Any) -> list[str | None]:
    """As they are meant: transformers 5.23 refuses all assistants, and has most targets store nothing for them."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    modes: list[str | None] = [*[None] * first, *["reuse"] * config.num_kv_shared_layers]
    for last in {kind: layer for layer, kind in enumerate(config.layer_types[:first])}.values():
        modes[last] = "store"
    return modes


for _config in (transformers.Gemma4TextConfig, transformers.Gemma4UnifiedTextConfig):
    _config.kv_sharing_modes = property(_kv_sharing_modes)


def eagle_layer(prefix: str, width: int, queries: int, keys: int, inner: int, seed: int) -> Tensors:
    """The eight tensors of a decoder layer without its input norm."""
    shapes = {
        "self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }  # fmt: skip
    made = {
        f"{prefix}.{name}.weight": _matrix(*shape, 100 * seed + index)
        for index, (name, shape) in enumerate(shapes.items())
    }
    return made | {f"{prefix}.post_attention_layernorm.weight": _norm(width, 50 + seed)}


def _matrix(outputs: int, inputs: int, seed: int) -> torch.Tensor:
    values = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    return values / math.sqrt(inputs)


def _norm(width: int, seed: int) -> torch.Tensor:
    return 1 + 0.1 * torch.randn(width, generator=torch.Generator().manual_seed(seed))
