"""Tiny random models in torch: the yardstick of what the kernels compute."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support.tiny_models import TinyModel, tiny_model

_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def torch_model(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """`tiny_model` in torch."""
    made = tiny_model(family, **changes)
    config_class, model_class = _CLASSES[family]
    model: PreTrainedModel = model_class(config_class(**made.config))
    tensors = {name: torch.from_numpy(array) for name, array in made.tensors.items()}
    if made.config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model.to(dtype).eval()


def from_torch(model: PreTrainedModel) -> TinyModel:
    """A model of torch with its tensors as arrays."""
    tensors = {name: tensor.detach().float().numpy().copy() for name, tensor in model.state_dict().items()}
    return TinyModel(model.config.to_dict(), tensors)


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of a saved model; None removes one."""
    path = folder / "model.safetensors"
    weights: dict[str, torch.Tensor | None] = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path, metadata={"format": "pt"})


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
