"""One tiny random target for all tests, in torch, behind the kernels and on disk, with drafters of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from moa_kernels import QuantisedMatrix, in_four_bits
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter import DrafterConfig, fresh_tensors, save_checkpoint
from moa_shared.models.network.network import Network
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
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
SIZES: dict[str, int] = {  # which the kernels take
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8}  # for torch alone
WORDS = tuple(f"w{index}" for index in range(SIZES["vocab_size"]))
END = 2  # the token that ends a text of a target on disk
CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
Floats = npt.NDArray[np.float32]


def tiny_model(
    family: str = "llama", dtype: torch.dtype = torch.float32, *, seed: int = 3, **changes: Any
) -> PreTrainedModel:
    """A model of a family, with weights large enough that every token's logits depend on every other.

    Args:
        changes: to the configuration; with `initializer_range` transformers draws the weights as it does by itself.
    """
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[family]
    model: PreTrainedModel = model_class(config_class(**{**SIZES, **changes}))
    if "initializer_range" not in changes:
        draw_weights(model)
    return model.to(dtype).eval()


@torch.no_grad()
def draw_weights(model: PreTrainedModel) -> None:
    """Weights large enough that every token's logits depend on every other."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.normal_(1.0, 0.1)
        elif parameter.dim() == 2:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5)
        else:
            parameter.normal_(0.0, 0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # Gemma 4's
            buffer.uniform_(0.6, 1.4)


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
        return in_four_bits(self.tensors[name]) if any(part in name for part in self.packed) else None

    def array(self, name: str) -> Floats:
        return self.tensors[name]

    def rows(self, name: str, ids: Sequence[int] | npt.NDArray[np.int64]) -> Floats:
        rows: Floats = self.tensors[name][np.asarray(ids)]
        return rows


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
    return KernelTarget(network, int(config["max_position_embeddings"]), context_length, kv="f32" if plain else "f16")


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS, *, end: int = END, template: str = "") -> None:
    """Adds a tokenizer to the folder of a model: a word a token, the first of them for all that is unknown."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[end], unk_token=words[0])
    fast.chat_template = template or None
    fast.save_pretrained(folder)


def save_tiny_model(folder: Path, family: str = "llama", *, template: str = "", **changes: Any) -> Path:
    """A tiny model with a tokenizer, as save_pretrained writes them."""
    tiny_model(family, **{"eos_token_id": END, **changes}).save_pretrained(folder)
    save_tokenizer(folder, template=template)
    return folder


def small_drafter(**changes: Any) -> DrafterConfig:
    """The shapes of a drafter for `tiny_model(**SMALL)`."""
    shapes = {
        "vocab_size": SIZES["vocab_size"], "hidden_size": 32, "target_layers": SIZES["num_hidden_layers"],
        "target_heads": 4, "target_kv_heads": 2, "target_head_dim": 8, "sa_kv_heads": 2, "sa_mlp": 16, "ca_kv_heads": 2,
        "ca_mlp": 16, "lsa_heads": 4, "lsa_kv_heads": 2, "lsa_mlp": 16,
    }  # fmt: skip
    return DrafterConfig(**{**shapes, **changes})


def save_drafter(path: Path, config: DrafterConfig, seed: int = 1) -> Path:
    """A random drafter of these shapes."""
    save_checkpoint(path, config, fresh_tensors(config, seed=seed))
    return path
