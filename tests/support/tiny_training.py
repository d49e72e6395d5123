"""A target small enough to train for in a second, with a tokenizer and a chat template."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from moa_shared.models import ModelFiles, resolve
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "user", "assistant", "system", "<end>", *(f"w{index}" for index in range(91))]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def save_tiny_target(folder: Path, seed: int = 1, words: list[str] = WORDS) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        num_hidden_layers=4,
        max_position_embeddings=256,
        eos_token_id=4,
        bos_token_id=None,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[4], unk_token=words[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


def tiny_files(folder: Path, cache: Path, seed: int = 1, words: list[str] = WORDS) -> ModelFiles:
    return resolve(str(save_tiny_target(folder, seed, words)), cache)


def write_conversations(path: Path, count: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        question, answer = (" ".join(draw.choices(WORDS[5:30], k=draw.randint(3, 12))) for _ in range(2))
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages, "source": "toy"}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_fit_config(folder: Path, target: Path, shard: Path, extra: str = "", tokens: int = 3000) -> Path:
    path = folder / "fit.toml"
    path.write_text(
        f"""target = "{target}"
shards = ["{shard}"]
output = "out"
dtype = "float32"
checkpoint_minutes = 1000.0
report_steps = 2
[drafter]
draft_vocab = 48
lsa_mlp = 32
reused_layers = 1
[blocks]
shortest = 3
longest = 6
[optimiser]
batch_rows = 2
row_tokens = 64
warmup_steps = 5
memory_gradient_share = 0.5
[budget]
tokens = {tokens}
{extra}"""
    )
    return path
