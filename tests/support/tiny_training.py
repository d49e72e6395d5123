"""A target small enough to train for in a second, with a tokenizer and a chat template."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moa_shared.models import ModelFiles, resolve
from moa_training.settings import FitSettings, fit_settings

from tests.support.tiny_models import save_tokenizer, tiny_model

WORDS = ["<unk>", "user", "assistant", "system", "<end>", *(f"w{index}" for index in range(91))]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def save_tiny_target(folder: Path, seed: int = 1, words: Sequence[str] = WORDS) -> Path:
    """Of sizes that the kernels take, which compute its drafters many times as fast as numpy does."""
    sizes: dict[str, Any] = {"vocab_size": len(words), "num_hidden_layers": 4, "max_position_embeddings": 512}
    tiny_model(seed=seed, eos_token_id=4, spread=0.2, **sizes).save(folder)
    save_tokenizer(folder, words, end=4, template=TEMPLATE)
    return folder


def tiny_files(folder: Path, cache: Path, seed: int = 1, words: Sequence[str] = WORDS) -> ModelFiles:
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


def tiny_settings(**changes: Any) -> FitSettings:
    content = {"shards": ["a"], "output": "out", "budget": {"tokens": 1}, **changes}
    return fit_settings(content, Path("fit.toml"))
