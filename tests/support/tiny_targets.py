"""Tiny random targets of sizes that torch and the kernels take: the same weights behind both backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from moa_kernels import Q4_1, QuantisedMatrix
from moa_server.target.kernel_target import KernelTarget
from moa_shared.models.network.network import Network
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = ["llama", "qwen2", "qwen3"]
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
Floats = npt.NDArray[np.float32]


def tiny_model(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """A model of a family, with weights large enough that every token's logits depend on every other."""
    torch.manual_seed(3)
    config_class, model_class = CLASSES[family]
    model: PreTrainedModel = model_class(config_class(**{**SIZES, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.1)
            elif parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(0.0, 0.1)
    return model.to(dtype).eval()


class ModelWeights:
    """The tensors of a model in torch, as `Network` reads them.

    Args:
        packed: which matrices are given in 4-bit blocks, by a part of their names.
    """

    def __init__(self, model: PreTrainedModel, packed: Sequence[str] = ()) -> None:
        self.tensors: dict[str, Floats] = {
            name: tensor.detach().float().numpy().copy() for name, tensor in model.state_dict().items()
        }
        self.packed = tuple(packed)

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def blocks(self, name: str) -> QuantisedMatrix | None:
        return q4_1(self.tensors[name]) if any(part in name for part in self.packed) else None

    def array(self, name: str) -> Floats:
        return self.tensors[name]

    def rows(self, name: str, ids: Sequence[int]) -> Floats:
        return self.tensors[name][list(ids)]


def q4_1(weights: Floats) -> QuantisedMatrix:
    """[outputs, inputs] in 4 bits: the smallest and the largest of 32 numbers are codes 0 and 15."""
    groups = weights.reshape(len(weights), -1, 32)
    minima = groups.min(axis=-1, keepdims=True).astype(np.float16)
    scales = ((groups.max(axis=-1, keepdims=True) - minima) / 15).astype(np.float16)
    steps = (groups - minima.astype(np.float32)) / np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
    codes = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    parts = (scales.view(np.uint8), minima.view(np.uint8), codes[..., :16] | codes[..., 16:] << 4)
    return QuantisedMatrix(Q4_1, np.concatenate(parts, axis=-1))


def tiny_kernel_target(
    model: PreTrainedModel,
    context_length: int | None = None,
    *,
    packed: Sequence[str] = ("q_proj", "k_proj", "v_proj", "down_proj"),
    plain: bool = False,
) -> KernelTarget:
    """A model behind the kernels: as served (int8, keys and values in float16), or `plain`: in float32 throughout."""
    config = model.config.to_dict()
    network = Network(ModelWeights(model, () if plain else packed), config, plain=plain)
    return KernelTarget(network, int(config["max_position_embeddings"]), context_length, half=not plain)


def save_tiny_model(folder: Path, family: str = "llama", **changes: object) -> Path:
    """A tiny model with a tokenizer, as save_pretrained writes them."""
    tiny_model(family, eos_token_id=2, **changes).save_pretrained(folder)
    words = WordLevel({f"w{index}": index for index in range(SIZES["vocab_size"])}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="w2").save_pretrained(folder)
    return folder
