"""tokenizer.json, tokenizer_config.json and chat_template.jinja out of a GGUF file's metadata.

Vocabularies are byte-level BPE, Gemma 4's, or SentencePiece (`tokenizer.ggml.model` = llama): there llama.cpp joins by
score, as byte pairs do whose merges are all ways to make each token in the order of scores. Invariant: ids are those of
llama.cpp, but in a dialect that is not known here, which is said.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moa_shared.models.storage.gguf_header import GgufHeader
from moa_shared.programs.machine import collector_paused
from moa_shared.programs.progress import Progress
from moa_shared.sandbox import tokenizer_json
from moa_shared.sandbox.tokenizer_json import DEFAULT, SPACE, WITH_TOOLS

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # of `tokenizer.ggml.token_type`
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_LLAMA_3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
# What `tokenizer.ggml.pre` may say: the expression by which text is cut. None: GPT-2's own.
_SPLITS: dict[str | None, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "olmo", "phi-2", "trillion", "granite-docling", None), None),
    **dict.fromkeys((*_LLAMA_3, "dbrx", "smaug-bpe"), tokenizer_json.LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), tokenizer_json.QWEN_2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), tokenizer_json.GPT_4O),
    "qwen35": tokenizer_json.QWEN_3_5,
    "tekken": tokenizer_json.TEKKEN,
}
# GPT-2's expression after each digit is split off (SmolLM 2, Granite 3, StarCoder).
_DIGITS_FIRST = ("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b")
# Dialects whose texts begin with BOS where the header does not say (so do all SentencePiece vocabularies, llama.cpp),
# and in which a word that is a token is not made by merges.
_BEGIN_WITH_BOS = (*_LLAMA_3, "tekken")
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_TEXT = (
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
)  # fmt: skip


@collector_paused()
def write_tokenizer(header: GgufHeader, folder: Path, progress: Progress) -> None:
    kind = check_vocabulary(header)
    tokens = header.values("tokenizer.ggml.tokens")
    named = {key: header.token_id(name) for key, name in _SPECIAL.items()}
    try:
        content = {"version": "1.0", "added_tokens": _added_tokens(header), **_KINDS[kind](header, progress)}
        described = tokenizer_json.JsonTokenizer(json.dumps(content, ensure_ascii=False))
        (folder / "tokenizer.json").write_text(described.text, "utf-8")
        config: dict[str, object] = {key: tokens[index] for key, index in named.items() if index is not None}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # a merge of no tokens, say
        raise header.wrong(f"has a vocabulary that makes no sense ({error})") from error
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # for those who read this folder with transformers
    by_dialect = kind != "gpt2" or header.text("tokenizer.ggml.pre") in _BEGIN_WITH_BOS
    said = header.flag("tokenizer.ggml.add_bos_token")
    config["add_bos_token"] = by_dialect if said is None else said
    template, with_tools = (header.text(f"tokenizer.chat_template{each}") for each in ("", f".{WITH_TOOLS}"))
    if template:
        templates = {DEFAULT: template} | ({WITH_TOOLS: with_tools} if with_tools else {})
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def check_vocabulary(header: GgufHeader) -> str:
    """The kind of a vocabulary, from a header that may lack its arrays."""
    kind = header.text("tokenizer.ggml.model") or ""
    if kind not in _KINDS:
        raise header.unread(f"has a tokenizer of the kind {kind!r}")
    return kind


def _added_tokens(header: GgufHeader) -> list[dict[str, Any]]:
    """Tokens that are found in a text before it is cut: special ones, and those that a user has defined."""
    tokens, kinds = header.values("tokenizer.ggml.tokens"), header.values("tokenizer.ggml.token_type")
    special = {index for index in map(header.token_id, _SPECIAL.values()) if index is not None}
    special |= {index for index, kind in enumerate(kinds) if kind == _CONTROL}
    own = [index for index, kind in enumerate(kinds) if kind == _USER_DEFINED]
    numbers = {token: index for index, token in enumerate(tokens)}
    added = {tokens[index]: index in special for index in (*own, *special)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    texts = sorted(added, key=numbers.__getitem__)
    return [{"id": numbers[text], "content": text, **plain, "special": added[text]} for text in texts]


def _describe_bytes(header: GgufHeader, progress: Progress) -> dict[str, Any]:
    tokens, merges = header.values("tokenizer.ggml.tokens"), _merges(header)
    kinds = header.values("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(merges)} merges")
    whole = {index for index, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)}
    vocabulary = {token if index in whole else _spell(token): index for index, token in enumerate(tokens)}
    dialect = header.text("tokenizer.ggml.pre")
    first: dict[str, Any] | None = None
    if dialect in _DIGITS_FIRST:  # without it "\n\n1" loses its double newline token
        first = {"type": "Digits", "individual_digits": True}
    elif (split := _SPLITS.get(dialect)) is not None:
        first = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
    elif dialect not in _SPLITS:
        progress.note(
            f"The tokenizer dialect {dialect!r} of this GGUF file is not known here: text may be cut"
            " into tokens a little differently than the model was trained on."
        )
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    own = {**last, "use_regex": first is None or first["type"] == "Digits"}
    return {
        "normalizer": None,
        "pre_tokenizer": own if first is None else {"type": "Sequence", "pretokenizers": [first, own]},
        "decoder": last,
        "model": {
            "type": "BPE",
            "ignore_merges": dialect in _BEGIN_WITH_BOS,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _merges(header: GgufHeader) -> list[tuple[str, str]]:
    tokens, merges = header.values("tokenizer.ggml.tokens"), header.values("tokenizer.ggml.merges")
    if not tokens or not merges:
        raise ValueError(f"{len(tokens)} tokens, {len(merges)} merges")
    return [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]


def _spell(token: str) -> str:
    if (token.isascii() and token.isprintable() and " " not in token) or set(token) <= tokenizer_json.BYTE_LEVEL.keys():
        return token
    return tokenizer_json.spell_bytes(token)


def _describe_sentencepiece(header: GgufHeader, _: Progress) -> dict[str, Any]:
    tokens, scores = header.values("tokenizer.ggml.tokens"), header.values("tokenizer.ggml.scores")
    kinds = header.values("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if not tokens or not len(scores) == len(kinds) == len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(scores)} scores")
    known = {token: index for index, token in enumerate(tokens)}
    joined = [index for index, kind in enumerate(kinds) if kind == _NORMAL and len(tokens[index]) > 1]
    joined.sort(key=lambda index: -scores[index])
    merges = []
    for token in (tokens[index] for index in joined):  # by each pair of tokens that makes it, the likeliest first
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        ways = [(known[first], known[last]) for first, last in pairs if first in known and last in known]
        merges += [(tokens[first], tokens[last]) for first, last in sorted(ways)]
    prefixed = header.flag("tokenizer.ggml.add_space_prefix") is not False
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _SPACES]}
    decoders = [*_TEXT, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else [])]
    return {
        "normalizer": prepended if prefixed else _SPACES,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _byte_pairs(header, merges),
    }


def _describe_gemma4(header: GgufHeader, _: Progress) -> dict[str, Any]:
    lines = {"type": "Split", "pattern": {"Regex": r"[^\n]+|\n+"}, "behavior": "Isolated", "invert": False}
    return {
        "normalizer": _SPACES,
        "pre_tokenizer": lines,
        "decoder": {"type": "Sequence", "decoders": list(_TEXT)},
        "model": _byte_pairs(header, _merges(header)),
    }


def _byte_pairs(header: GgufHeader, merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    tokens, unknown = header.values("tokenizer.ggml.tokens"), header.token_id("unknown")
    return {
        "type": "BPE",
        "unk_token": tokens[unknown] if unknown is not None else None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": merges,
    }


_KINDS = {"gpt2": _describe_bytes, "llama": _describe_sentencepiece, "gemma4": _describe_gemma4}
