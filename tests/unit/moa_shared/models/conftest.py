"""A tiny model on disk, as a GGUF file or as a folder, and a cache."""

import json
from pathlib import Path

import pytest

from tests.support.model_places import places  # noqa: F401 (a fixture)
from tests.support.tiny_gguf import HEADS, HIDDEN, MERGES, MLP, SPECIALS, TOKENS, write_gguf  # noqa: F401 (a fixture)
from tests.support.tiny_models import tiny_model


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A tiny Llama in the layout of save_pretrained, with a tokenizer."""
    folder = tmp_path / "tiny-llama"
    tiny_model(
        seed=0, vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=MLP, head_dim=HIDDEN // HEADS,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    ).save(folder)  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i, t in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(TOKENS)}, "merges": [m.split() for m in MERGES]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), "utf-8")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder
