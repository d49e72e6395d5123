"""Reads a tokenizer's files: tokenizer.json by the `tokenizers` package, special tokens and the chat template.

What a tokenizer.json may make of a text is bounded first. Invariant: decoding is bounded by the number of tokens, and
so is safe in any process; encoding is either bounded by the text or left to a child process with limits. What the
package raises is a ValueError, its panics too, which are BaseExceptions.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import PreTokenizedString, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from moa_shared.plain_text import parse_json
from moa_shared.programs.machine import collector_paused

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
    except BaseException as error:
        is_other = isinstance(error, Exception) or type(error).__name__ == "PanicException"  # it cannot be imported
        if not is_other or isinstance(error, MemoryError | ValueError):
            raise
        raise ValueError(str(error)) from None


DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of chat templates, as transformers has them
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@collector_paused()
def read_tokenizer(folder: Path) -> JsonTokenizer:
    """What `folder/tokenizer.json` describes; raises what `JsonTokenizer` raises, and OSError."""
    return JsonTokenizer((folder / "tokenizer.json").read_text("utf-8"))


@lru_cache(maxsize=1)
def _kept(folder: Path, changed: int) -> JsonTokenizer:
    return read_tokenizer(folder)


def encode_text(folder: str, text: str, is_guarded: bool) -> list[int]:
    """As `JsonTokenizer.encode`, by the tokenizer in `folder`, which is kept for the next text."""
    changed = Path(folder, "tokenizer.json").stat().st_mtime_ns
    return _kept(Path(folder), changed).encode(text, is_guarded=is_guarded)


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
    if not isinstance(template, list):
        return {} if template is None else {DEFAULT: str(template)}
    named = {str(entry["name"]): str(entry["template"]) for entry in template}
    return {name: named[name] for name in (DEFAULT, WITH_TOOLS) if name in named}


def _read_json(path: Path) -> dict[str, Any]:
    content = parse_json(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return content


# Expressions by which the tokenizers of known models cut text: they take time in proportion to its length.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
QWEN_3_5 = QWEN_2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _ENDING + r"|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _ENDING + r"|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KNOWN = frozenset({LLAMA_3, QWEN_2, QWEN_3_5, TEKKEN, GPT_4O, GPT_2})

Step = Mapping[str, Any]
_MOST_ENCODED, _MOST_DECODED = 16, 4  # times as long, in any process; NFC in UTF-8 is 12
_MOST_STEPS = 16  # known models have up to 6
_LONGEST_TOKEN = 1024  # characters; those of known models have up to 256
_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # Unicode's own figures
_ENCODING = {
    *_FORMS,
    *["Prepend", "Replace", "ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "WhitespaceSplit"],
}
_DECODING = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def check_bounds(content: Step) -> bool:
    """Whether texts may be encoded in any process, by this content of a tokenizer.json."""
    model = content["model"]
    if model.get("dropout"):
        raise ValueError("moa does not read byte pairs with a dropout")
    added = [str(token["content"]) for token in content.get("added_tokens") or ()]
    known = model["vocab"] if isinstance(model["vocab"], Mapping) else [str(piece) for piece, _ in model["vocab"]]
    longest = max(map(len, (*known, *added)), default=0)
    if longest > _LONGEST_TOKEN:
        raise ValueError(f"it has a token of {longest:,} characters, at most {_LONGEST_TOKEN:,} are allowed")
    encoding = [*_steps(content.get("normalizer")), *_steps(content.get("pre_tokenizer"))]
    decoding = _steps(content.get("decoder"))
    spelled = (step for step in decoding if step.get("type") != "ByteLevel")  # which makes a character of one or more
    if math.prod(map(_growth, spelled)) > _MOST_DECODED:
        raise ValueError(f"its decoding may make a text more than {_MOST_DECODED} times as long")
    if len(decoding) > _MOST_STEPS:
        raise ValueError(f"its decoder has {len(decoding):,} steps, at most {_MOST_STEPS} are allowed")
    for step in decoding:
        if step.get("type") not in _DECODING or "Regex" in (step.get("pattern") or ()):
            raise ValueError(f"moa does not read its decoder {step.get('type')}")
    expressions = {step["pattern"]["Regex"] for step in encoding if "Regex" in (step.get("pattern") or ())}
    is_plain = model.get("type", "BPE") in ("BPE", "WordLevel") and not any(model.get(each) for each in _AFFIXES)
    is_plain = is_plain and all(step.get("type") in _ENCODING for step in encoding)
    is_short = len(encoding) <= _MOST_STEPS and math.prod(map(_growth, encoding)) <= _MOST_ENCODED
    return is_plain and is_short and expressions <= KNOWN


def _steps(step: Step | None) -> list[Step]:
    if not isinstance(step, Mapping) or step.get("type") != "Sequence":
        return [step] if isinstance(step, Mapping) else []  # the package says what is wrong
    sequences = ("normalizers", "pretokenizers", "decoders")
    return [inner for name in sequences for each in step.get(name, ()) for inner in _steps(each)]


def _growth(step: Step) -> int:
    match step:
        case {"type": "Prepend", "prepend": str(text)}:
            return 1 + len(text)
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if text:
            return -(-max(len(text), len(content)) // len(text))
        case {"type": "Replace", "content": str(content)}:  # for an expression, which may match nothing
            return 1 + len(content)
        case {"type": "ByteLevel"}:
            return 4 * (1 + bool(step.get("add_prefix_space")))
        case {"type": "Metaspace", "replacement": str(space)}:
            return 1 + len(space)
        case _:
            return _FORMS.get(str(step.get("type")), 1)


INCOMPLETE = "�"  # how a tokenizer shows a part of a character
SPACE = "▁"  # before a word, where a vocabulary is SentencePiece's

# GPT-2's alphabet: the character that stands for each byte.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted({*range(256)}.difference(_PRINTABLE))
BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + rank): byte for rank, byte in enumerate(_OTHERS)}
_SPELLED = {byte: character for character, byte in BYTE_LEVEL.items()}


def spell_bytes(text: str) -> str:
    return text.encode().decode("latin-1").translate(_SPELLED)


def token_bytes(piece: str, text: str) -> bytes:
    """What a token adds to a text, in UTF-8; `piece`: as its vocabulary has it, `text`: as it is decoded by itself."""
    found = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)  # a byte, where words are spelled in letters
    if found is not None and text != piece:
        return bytes.fromhex(found[1])
    if INCOMPLETE in text and all(character in BYTE_LEVEL for character in piece):
        return bytes(BYTE_LEVEL[character] for character in piece)
    if piece.startswith(SPACE) and not text.startswith(" "):
        text = f" {text}"  # which is left out at the beginning of a text
    return text.encode()
