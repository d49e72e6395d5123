"""Reads a tokenizer's files: tokenizer.json, and special tokens and the chat template beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.programs.machine import collector_paused
from moa_shared.text.json_text import parse_json
from moa_shared.tokenization.tokenizer_json import JsonTokenizer

DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of chat templates, as transformers has them
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@collector_paused()
def read_tokenizer(folder: Path) -> JsonTokenizer:
    """What `folder/tokenizer.json` describes; raises what `JsonTokenizer` raises, and OSError."""
    return JsonTokenizer((folder / "tokenizer.json").read_text("utf-8"))


def read_special(folder: Path) -> dict[str, str]:
    """Special tokens by name; a token is its spelling, or an object with it."""
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    found = {name: config[name] for name in _SPECIAL if config.get(name) is not None}
    return {name: str(token["content"] if isinstance(token, dict) else token) for name, token in found.items()}


def read_bos(folder: Path, described: JsonTokenizer, special: Mapping[str, str]) -> int | None:
    """The token that a raw text begins with, as tokenizer_config.json says, or else as tokenizer.json adds it."""
    if (bos := special.get("bos_token")) is None:
        return None
    number = described.vocabulary.get(bos)
    is_added = _read_json(folder / "tokenizer_config.json").get("add_bos_token")
    if not isinstance(is_added, bool):
        is_added = described.encode("", adds_special=True)[:1] == [number]
    return number if is_added else None


def read_templates(folder: Path) -> dict[str, str]:
    """The chat templates by name, from their own file or tokenizer_config.json: DEFAULT, and perhaps WITH_TOOLS."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {DEFAULT: path.read_text("utf-8")}
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {str(entry["name"]): str(entry["template"]) for entry in template}
        return {name: named[name] for name in (DEFAULT, WITH_TOOLS) if name in named}
    return {} if template is None else {DEFAULT: str(template)}


def _read_json(path: Path) -> dict[str, Any]:
    content = parse_json(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return content
