"""Reads a tokenizer's files: tokenizer.json by the `tokenizers` package, special tokens and the chat template.

Invariant: what the package raises is a ValueError, its panics too, which are BaseExceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import PreTokenizedString, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from moa_shared.programs.machine import collector_paused
from moa_shared.text.json_text import parse_json
from moa_shared.tokenization.bounds import check_bounds

GUARD = "\ufdd0"  # no character: within what spells a token, it keeps that from being found


class JsonTokenizer:
    """A tokenizer by its description. `is_bounded`: it encodes any text in time. `text`: of tokenizer.json."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_bounded = check_bounds(parse_json(text))
        self._lock, self._guard = Lock(), _Guard()
        with _failures():
            self._package = Tokenizer.from_str(text)
            self._package.no_truncation()
            self._package.no_padding()
            guard, cut = PreTokenizer.custom(self._guard), self._package.pre_tokenizer
            self._package.pre_tokenizer = guard if cut is None else Sequence([guard, cut])
            self.vocabulary: dict[str, int] = self._package.get_vocab(with_added_tokens=True)
            added = self._package.get_added_tokens_decoder()
        self.added = frozenset(token.content for token in added.values())
        self.special = {token.content: number for number, token in added.items() if token.special}

    def encode(self, text: str, *, is_guarded: bool = False, adds_special: bool = False) -> list[int]:
        """The ids of a text; special tokens that are spelled out in it are found. ValueError: it has no tokens.

        `is_guarded`: GUARD in it is left out after that. `adds_special`: with those that the file adds to a text.
        """
        with self._lock, _failures():
            self._guard.is_left_out = is_guarded and GUARD in text
            ids: list[int] = self._package.encode(text, add_special_tokens=adds_special).ids
            return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens; ids of no token are left out."""
        with _failures():
            text: str = self._package.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text

    def token(self, number: int) -> str | None:
        """How the vocabulary spells a token; None: there is no such token."""
        piece: str | None = self._package.id_to_token(number)
        return piece


class _Guard:
    is_left_out = False

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        if self.is_left_out:
            text.normalize(lambda part: part.replace(GUARD, ""))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (MemoryError, ValueError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # it cannot be imported
            raise
        raise ValueError(str(error)) from None


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
