"""tokenizer.json, tokenizer_config.json and chat_template.jinja out of a GGUF file's metadata.

Byte-level BPE here, SentencePiece in `sentencepiece.py`. Invariant: text is cut before BPE as the header says, and a
dialect that is not known here is reported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.sentencepiece import describe_gemma4, describe_sentencepiece
from moa_shared.programs.garbage import collector_paused
from moa_shared.programs.progress import Progress
from moa_shared.sandbox.tokenizer_files import DEFAULT, WITH_TOOLS
from moa_shared.tokenization.patterns import GPT_4O, LLAMA_3, QWEN_2, TEKKEN
from moa_shared.tokenization.token_bytes import BYTE_LEVEL, spell_bytes
from moa_shared.tokenization.tokenizer_json import JsonTokenizer

_BYTE_PAIRS, _SENTENCEPIECE, _GEMMA_4 = "gpt2", "llama", "gemma4"  # `tokenizer.ggml.model`
_SPELLED = {_SENTENCEPIECE: describe_sentencepiece, _GEMMA_4: describe_gemma4}  # in letters, not in bytes
_CONTROL, _USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_LLAMA_3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
# What `tokenizer.ggml.pre` may say: the expression by which text is cut. None: GPT-2's own.
_SPLITS: dict[str | None, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "olmo", "phi-2", "trillion", "granite-docling", None), None),
    **dict.fromkeys((*_LLAMA_3, "dbrx", "smaug-bpe"), LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), QWEN_2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), GPT_4O),
    "tekken": TEKKEN,
}
# GPT-2's expression after each digit is split off (SmolLM 2, Granite 3, StarCoder).
_DIGITS_FIRST = ("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b")
# Dialects whose texts begin with BOS where the header does not say; so do all SentencePiece vocabularies (llama.cpp).
_BEGIN_WITH_BOS = (*_LLAMA_3, "tekken")
_WHOLE_WORDS = _BEGIN_WITH_BOS  # a word that is a token is not made by merges
_CONFIG = "tokenizer_config.json"


@collector_paused()
def write_tokenizer(header: GgufHeader, folder: Path, progress: Progress) -> None:
    """Write the tokenizer's files into `folder`.

    Raises:
        ModelSourceError: no vocabulary, one that makes no sense, or one of a kind that cannot be read here.
    """
    kind = check_vocabulary(header)
    tokens = header.texts("tokenizer.ggml.tokens")
    named = {key: header.token_id(name) for key, name in _SPECIAL.items()}
    try:
        content = _SPELLED[kind](header) if kind in _SPELLED else _describe(header, progress)
        content = {"version": "1.0", "added_tokens": _added_tokens(header)} | content
        described = JsonTokenizer(json.dumps(content, ensure_ascii=False))
        (folder / "tokenizer.json").write_text(described.text, "utf-8")
        config: dict[str, object] = {key: tokens[index] for key, index in named.items() if index is not None}
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # such as a merge of unknown tokens
        raise ModelSourceError(
            f"The vocabulary of the GGUF file {header.path} makes no sense ({error}).", hint=DAMAGED
        ) from error
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # for those who read this folder with transformers
    by_dialect = kind in _SPELLED or header.text("tokenizer.ggml.pre") in _BEGIN_WITH_BOS
    said = header.flag("tokenizer.ggml.add_bos_token")
    config["add_bos_token"] = by_dialect if said is None else said
    template, with_tools = (header.text(f"tokenizer.chat_template{each}") for each in ("", f".{WITH_TOOLS}"))
    if template and with_tools:
        templates = {DEFAULT: template, WITH_TOOLS: with_tools}
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    elif template:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    (folder / _CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def check_vocabulary(header: GgufHeader) -> str:
    """The kind of a vocabulary, from a header that may lack its arrays.

    Raises:
        ModelSourceError: one that cannot be read here.
    """
    kind = header.text("tokenizer.ggml.model")
    if kind is None or kind not in (_BYTE_PAIRS, *_SPELLED):
        raise ModelSourceError(
            f"The GGUF file {header.path} has a tokenizer of the kind {kind!r}, which moa does not read.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )
    return kind


def _added_tokens(header: GgufHeader) -> list[dict[str, Any]]:
    """Tokens that are found in a text before it is cut: special ones, and those that a user has defined."""
    tokens, kinds = header.texts("tokenizer.ggml.tokens"), header.integers("tokenizer.ggml.token_type")
    named = (header.token_id(name) for name in _SPECIAL.values())
    special = {index for index in named if index is not None}
    special |= {index for index, kind in enumerate(kinds) if kind == _CONTROL}
    own = [index for index, kind in enumerate(kinds) if kind == _USER_DEFINED]
    numbers = {token: index for index, token in enumerate(tokens)}
    added = {tokens[index]: index in special for index in (*own, *special)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    entries: list[dict[str, Any]] = [
        {"id": numbers[text], "content": text, **plain, "special": is_special} for text, is_special in added.items()
    ]
    return sorted(entries, key=lambda entry: entry["id"])


def _describe(header: GgufHeader, progress: Progress) -> dict[str, Any]:
    """What tokenizer.json says of a byte-level vocabulary, but for added tokens."""
    tokens, merges = header.texts("tokenizer.ggml.tokens"), header.texts("tokenizer.ggml.merges")
    kinds = header.integers("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens or not merges or len(kinds) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(merges)} merges")
    whole = {index for index, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)}
    vocabulary = {token if index in whole else _spell(token): index for index, token in enumerate(tokens)}
    dialect = header.text("tokenizer.ggml.pre")
    model = {
        "type": "BPE", "ignore_merges": dialect in _WHOLE_WORDS, "vocab": vocabulary,
        "merges": [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)],
    }  # fmt: skip
    return {
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(dialect, progress),
        "decoder": _byte_level(use_regex=True),
        "model": model,
    }


def _pre_tokenizer(dialect: str | None, progress: Progress) -> dict[str, Any]:
    if dialect in _DIGITS_FIRST:  # without it "\n\n1" loses its double newline token
        first: dict[str, Any] = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex=True)]}
    split = _SPLITS.get(dialect)
    if split is not None:
        first = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex=False)]}
    if dialect not in _SPLITS:
        progress.note(
            f"The tokenizer dialect {dialect!r} of this GGUF file is not known here: text may be cut"
            " into tokens a little differently than the model was trained on."
        )
    return _byte_level(use_regex=True)


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _spell(token: str) -> str:
    """A token in the byte alphabet; most are in it already."""
    if token.isascii() and token.isprintable() and " " not in token:
        return token
    if set(token) <= BYTE_LEVEL.keys():
        return token
    return spell_bytes(token)
