"""Tokenizers that do harm where they are loaded or used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_gguf import MERGES, TOKENS

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
