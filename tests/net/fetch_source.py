"""A tiny model and a drafter of it on disk, for tests that fetch them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from moa_shared.drafter import DrafterConfig, fresh_tensors, save_checkpoint
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 97


@dataclass(frozen=True)
class Source:
    model: Path
    drafter: Path


def make_source(folder: Path, *, reused_layers: int = 0, tied: bool = False) -> Source:
    """Random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        num_hidden_layers=3, max_position_embeddings=256, eos_token_id=2, tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2")
    fast.chat_template = "{% for m in messages %}w4 {{ m.content }} w2 {% endfor %}w5 "
    fast.save_pretrained(folder / "model")
    shapes = DrafterConfig(
        vocab_size=VOCAB, hidden_size=32, target_layers=3, target_heads=4, target_kv_heads=2, target_head_dim=8,
        sa_kv_heads=2, sa_mlp=16, ca_kv_heads=2, ca_mlp=16, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=16,
        reused_layers=reused_layers,
    )  # fmt: skip
    path = folder / "drafter.safetensors"
    save_checkpoint(path, shapes, fresh_tensors(shapes, seed=1))
    return Source(folder / "model", path)
