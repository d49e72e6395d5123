"""A tiny GGUF model, whole or with a chosen fault."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 32, 2, 4, 2, 64
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ċ Ċ", "h i"]
TOKENS = SPECIALS + sorted(ByteLevel.alphabet()) + ["ĊĊ", "hi"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
GgufWriter = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> GgufWriter:
    """Write a tiny GGUF model: a whole one, or one with a chosen fault."""

    def write(
        name: str = "tiny.gguf",
        *,
        architecture: str = "llama",
        pre: str = "smollm",
        rope_scaling: str | None = None,
        rope_factors: bool = False,
        poison: float | None = None,
        untied: bool = False,
        rotated: int = HIDDEN // HEADS,
        seed: int = 0,
        kind: str = "Q8_0",
        tokenizer: str = "gpt2",
        merges: list[str] = MERGES,
        tokens: list[str] = TOKENS,
        user_defined: tuple[str, ...] = (),
        lacking: str = "",
        extra: str = "",
        biases: bool = False,
        epsilon: float = 1e-5,
        add_bos: bool | None = None,
        add_space_prefix: bool | None = None,
        scores: bool = True,
        template: str | list[dict[str, str]] = TEMPLATE,
        sampling: Mapping[str, float] | None = None,
    ) -> Path:
        random = np.random.default_rng(seed)
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        facts = {
            "name": "tiny", "context_length": 64, "embedding_length": HIDDEN, "block_count": LAYERS,
            "feed_forward_length": MLP, "head_count": HEADS, "head_count_kv": KV_HEADS, "layer_norm_rms_eps": epsilon,
            "rope_freq_base": 10000.0, "rope_dimension_count": rotated, "key_length": HIDDEN // HEADS,
            "value_length": HIDDEN // HEADS, "vocab_size": len(tokens),
        }  # fmt: skip
        for key, fact in facts.items():
            getattr(writer, f"add_{key}")(fact)
        for key, value in (sampling or {}).items():
            (writer.add_int32 if isinstance(value, int) else writer.add_float32)(f"general.sampling.{key}", value)
        if rope_scaling is not None:
            writer.add_string(f"{architecture}.rope.scaling.type", rope_scaling)
        writer.add_tokenizer_model(tokenizer)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if t in SPECIALS else 4 if t in user_defined else 1 for t in tokens])
        if add_space_prefix is not None:
            writer.add_add_space_prefix(add_space_prefix)
        if tokenizer == "llama" and scores:
            writer.add_token_scores([-float(index) for index in range(len(tokens))])
        elif tokenizer != "llama":
            writer.add_token_merges(merges)
        for token, number in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
            getattr(writer, f"add_{token}_token_id")(number)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        writer.add_chat_template(template)

        def add(tensor: str, *shape: int) -> None:
            if tensor == lacking:
                return
            values = random.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5
            if poison is not None and tensor == "blk.1.ffn_up.weight":
                values[0, 0] = poison
            if len(shape) == 2 and poison is None:
                stored = gguf.GGMLQuantizationType[kind]
                writer.add_tensor(tensor, gguf.quants.quantize(values, stored), raw_dtype=stored)
            else:
                writer.add_tensor(tensor, values + (len(shape) == 1))

        add("token_embd.weight", len(tokens), HIDDEN)
        add("output_norm.weight", HIDDEN)
        if untied:
            add("output.weight", len(tokens), HIDDEN)
        if extra:
            writer.add_tensor(extra, np.ones(4, np.float32))
        if rope_factors:
            add("rope_freqs.weight", HIDDEN // HEADS // 2)
        keys = HIDDEN // HEADS * KV_HEADS
        widths = {"q": HIDDEN, "k": keys, "v": keys, "output": HIDDEN}
        names: dict[str, tuple[int, ...]] = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
        names |= {f"attn_{name}.weight": (rows, HIDDEN) for name, rows in widths.items()}
        if architecture == "qwen2" or biases:
            names |= {f"attn_{name}.bias": (widths[name],) for name in ("q", "k", "v", "output")[: 3 + biases]}
        if architecture == "qwen3":
            names |= {f"attn_{name}_norm.weight": (HIDDEN // HEADS,) for name in "qk"}
        names |= {"ffn_gate.weight": (MLP, HIDDEN), "ffn_up.weight": (MLP, HIDDEN), "ffn_down.weight": (HIDDEN, MLP)}
        for layer in range(LAYERS):
            for name, shape in names.items():
                add(f"blk.{layer}.{name}", *shape)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


_BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False}
_CHANGES: dict[str, dict[str, Any]] = {
    "none": {},
    "prefix": {"model": {"continuing_subword_prefix": "a"}},
    "normaliser": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "decoder": {"decoder": {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": ""}},
    "backtracks": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_BACKTRACKS]}},
}


def write_hostile(folder: Path, kind: str) -> None:
    """Writes a tokenizer.json of this kind; "none": a harmless one."""
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": bytes_only, "post_processor": None, "decoder": bytes_only,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(TOKENS)}, "merges": MERGES,
        },
    }  # fmt: skip
    for name, value in _CHANGES[kind].items():
        content[name] = {**content[name], **value} if name == "model" else value
    (folder / "tokenizer.json").write_text(json.dumps(content))
