"""Reads a tokenizer's files: tokenizer.json by the `tokenizers` package, special tokens and chat template beside it.

Invariant: a panic of `tokenizers`, which is a BaseException, is raised as a ModelSourceError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from moa_shared.errors import ModelSourceError
from moa_shared.text.json_text import parse_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@contextmanager
def without_panics() -> Iterator[None]:
    """In this block, a panic of `tokenizers` is raised as an error."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the class cannot be imported
            raise
        raise failure(error) from None


def failure(error: BaseException) -> ModelSourceError:
    """What a tokenizer's failure with a text is for the user."""
    return ModelSourceError(
        f"The target's tokenizer has failed: {str(error).rstrip('.')}.", hint="Send another text, or use another model."
    )


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """What `folder/tokenizer.json` describes; raises whatever the library raises for a damaged one."""
    with without_panics():
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        return backend


def read_special(folder: Path) -> dict[str, str]:
    """Special tokens by name; a token is its spelling, or an object with it."""
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    found = {name: config[name] for name in _SPECIAL if config.get(name) is not None}
    return {name: str(token["content"] if isinstance(token, dict) else token) for name, token in found.items()}


def read_bos(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> int | None:
    """The token that a raw text begins with, as tokenizer_config.json says, or else as tokenizer.json adds it."""
    if "bos_token" not in special:
        return None
    bos = backend.token_to_id(special["bos_token"])
    is_added = _read_json(folder / "tokenizer_config.json").get("add_bos_token")
    if not isinstance(is_added, bool):
        with without_panics():
            is_added = bos in backend.encode("", add_special_tokens=True).ids[:1]
    return bos if is_added else None


def read_template(folder: Path) -> str | None:
    """The chat template, from its own file or tokenizer_config.json: one template, or a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return None if template is None else str(template)


def _read_json(path: Path) -> dict[str, Any]:
    content = parse_json(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return content
