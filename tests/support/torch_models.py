"""Tiny random models in torch: the yardstick of what the kernels compute; and blocks as the drafters' authors draw them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.support.tiny_models import Floats, TinyModel, tiny_model

if TYPE_CHECKING:
    from moa_training.objective.blocks import Blocks


def torch_model(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """`tiny_model` in torch."""
    made = tiny_model(family, **changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**made.config))
    tensors = {name: torch.from_numpy(array) for name, array in made.tensors.items()}
    if made.config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model.to(dtype).eval()


@torch.no_grad()
def bare(model: PreTrainedModel, tokens: list[int]) -> Floats:
    """Logits of transformers' own forward over the whole text, with its own attention."""
    logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


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
        deviation = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.normal_(*((1.0, 0.1) if "norm" in name else (0.0, deviation)))
        if type(model).__name__.startswith(("Qwen3Next", "Qwen3_5")) and "norm" in name and "linear" not in name:
            parameter -= 1  # which these add
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # Gemma 4's
            buffer.uniform_(0.6, 1.4)


def build_blocks(inside: torch.Tensor, every: torch.Tensor | None, staircase: torch.Tensor) -> Blocks:
    """Masks of a batch whose blocks have given lengths.

    Args:
        inside: [batch, length] bool, tokens of answers; everywhere else each position starts a block.
        every: [batch] block length of each row: inside answers, index % every == 0 starts a block; None: an answer is
            one block.
        staircase: [batch] bool: rows whose self-attention sees only its own block after the start, and itself.
    """
    from moa_training.objective.blocks import Blocks

    starts = ~inside
    if every is not None:
        starts = starts | (torch.arange(inside.shape[1])[None] % every[:, None] == 0)
    return Blocks.from_starts(starts, staircase)
