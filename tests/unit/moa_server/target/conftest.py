from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ModelFactory = Callable[..., PreTrainedModel]


@pytest.fixture
def make_model() -> ModelFactory:
    """A tiny model of a family, with weights large enough that every token's logits depend on every other."""

    def make(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
        torch.manual_seed(3)
        sizes = {**SIZES, **changes}
        model: PreTrainedModel
        if family == "llama":
            model = LlamaForCausalLM(LlamaConfig(**sizes))
        elif family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**sizes))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=12))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.normal_(1.0, 0.1)
                elif parameter.dim() == 2:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5)
                else:
                    parameter.normal_(0.0, 0.1)
        return model.to(dtype).eval()

    return make
