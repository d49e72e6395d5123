"""Ids and texts are those of the `tokenizers` package, which is the yardstick here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.tokenization.patterns import KNOWN
from moa_shared.tokenization.tokenizer_json import JsonTokenizer

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+|."
DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
ADDED: tuple[tuple[str, dict[str, bool]], ...] = (  # as they are written, and how each is found
    ("<|end|>", {"special": True}),
    ("<|end|>>", {}),
    ("\n\n\n", {}),
    ("<mask>", {"special": True, "lstrip": True}),
    ("<right>", {"rstrip": True, "normalized": True}),
    ("ab", {"single_word": True}),
    ("é é", {"normalized": True}),
    ("  ", {"normalized": True}),
    ("<x y>", {"special": True, "normalized": True}),
)
LETTERS = "abcdelé日0128 '.\n"
PIECES = ("▁", " ", "ab", "hello", "'LL", "\r\n", "12", "<0x0A>", "é", "\x1c", "\x85", "\u2028", "_", "1")
# The two know different versions of Unicode: what is a digit for one may be no character yet for the other.
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
MANY = st.one_of(
    st.text(ASSIGNED),
    st.text(LETTERS + "▁Ġ_\t\rſK½٣e\u0301\u00a0\u2028\x1c\x85ﷺ👩‍👧"),
    st.lists(st.sampled_from([*(content for content, _ in ADDED), *PIECES])).map("".join),
)


def split(pattern: dict[str, str], behaviour: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": invert}


def in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def described(letters: str, spelled: Callable[[str], str] = str, added: bool = True, **parts: Any) -> dict[str, Any]:
    """A tokenizer.json whose vocabulary has some letters, and 60 merges of them."""
    choice = random.Random(3)
    vocabulary = {letter: number for number, letter in enumerate(dict.fromkeys(spelled(letters)))}
    merges: list[list[str]] = []
    while len(merges) < 60:
        pair = [choice.choice(list(vocabulary)) for _ in "12"]
        if len("".join(pair)) < 6 and pair not in merges:
            vocabulary.setdefault("".join(pair), len(vocabulary))
            merges.append(pair)
    model = {"type": "BPE", "unk_token": None, "vocab": vocabulary, "merges": merges, **parts.pop("model", {})}
    for token in model.pop("more", ()):
        vocabulary.setdefault(token, len(vocabulary))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokens = [
        {**flags, **how, "id": len(vocabulary) + number, "content": content}
        for number, (content, how) in enumerate(ADDED)
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens if added else [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts, "model": model,
    }  # fmt: skip


def byte_level(text: str) -> str:
    step = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in step.pre_tokenize_str(text)) + "".join(sorted(step.alphabet()))


def by_bytes(*steps: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return described(LETTERS, byte_level, pre_tokenizer=in_turn(*steps), decoder=BYTES, **parts)


def in_letters(**parts: Any) -> dict[str, Any]:
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    model = {"fuse_unk": True, "byte_fallback": True, "more": bytes_of, **parts.pop("model", {})}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoder = {"type": "Sequence", "decoders": [*steps, strip]}
    return described(LETTERS.replace(" ", "▁"), model=model, **{"decoder": decoder, **parts})


def metaspace(scheme: str, *, cuts: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cuts}


PREPENDED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES]}
TOKENIZERS = {
    **{f"known {number}": by_bytes(split({"Regex": text}), BYTES) for number, text in enumerate(sorted(KNOWN))},
    "DeepSeek": by_bytes(
        split({"Regex": r"\p{N}{1,3}"}), split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}), split({"Regex": DEEPSEEK}), BYTES
    ),
    "Kimi": by_bytes(split({"Regex": KIMI}), BYTES),
    "Falcon": by_bytes({"type": "Punctuation", "behavior": "Contiguous"}, {**BYTES, "use_regex": True}),
    "digits": by_bytes({"type": "Digits", "individual_digits": False}, {**BYTES, "add_prefix_space": True}),
    "single digits": by_bytes({"type": "Digits", "individual_digits": True}, {**BYTES, "use_regex": True}),
    "whole words": by_bytes(BYTES, model={"ignore_merges": True, "more": ["hello", "Ġab"]}),
    "NFC": by_bytes(BYTES, normalizer={"type": "NFC"}),
    "no decoder": described(LETTERS, pre_tokenizer={"type": "WhitespaceSplit"}),
    "Llama 2": in_letters(normalizer=PREPENDED, model={"unk_token": "."}),
    "Gemma": in_letters(normalizer=SPACES, pre_tokenizer=split({"String": " "}, "MergedWithPrevious")),
    "no bytes": in_letters(normalizer=SPACES, model={"byte_fallback": False, "unk_token": "a"}),
    "unknown apart": in_letters(model={"byte_fallback": False, "fuse_unk": False, "unk_token": "a"}),
    "some bytes": in_letters(model={"more": ["<0xC3>", "<0xA9>", "<0x20>"], "unk_token": "a"}),
    **{
        f"{behaviour}, inverted {invert}": in_letters(
            pre_tokenizer=split({"Regex": "[a-c]|é"}, behaviour, invert=invert)
        )
        for behaviour in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        for invert in (False, True)
    },
    **{
        f"Metaspace {scheme}, {cuts}": in_letters(
            pre_tokenizer=metaspace(scheme, cuts=cuts), decoder=metaspace(scheme, cuts=cuts)
        )
        for scheme in ("first", "always", "never")
        for cuts in (False, True)
    },
    "words": {
        "model": {"type": "WordLevel", "vocab": {"a": 0, "ab": 1}, "unk_token": "a"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
    },
}


@cache
def both(name: str) -> tuple[tokenizers.Tokenizer, JsonTokenizer]:
    text = json.dumps(TOKENIZERS[name])
    return tokenizers.Tokenizer.from_str(text), JsonTokenizer(text)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=MANY)
def test_ids_and_texts_are_those_of_the_package(name: str, text: str) -> None:
    theirs, ours = both(name)
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == ids
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(shares=st.lists(st.floats(0, 1)))
def test_any_tokens_in_a_row_are_the_same_text(name: str, shares: list[float]) -> None:
    theirs, ours = both(name)
    ids = [int(share * (len(ours.vocabulary) + 2)) for share in shares]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_vocabulary_is_the_same(name: str) -> None:
    theirs, ours = both(name)
    assert ours.vocabulary == theirs.get_vocab(with_added_tokens=True)
    added = theirs.get_added_tokens_decoder()
    assert ours.special == {token.content: number for number, token in added.items() if token.special}


def test_a_long_word_takes_time_in_proportion_to_its_length() -> None:
    """Where each merge is looked for among all letters, this takes hours."""
    theirs, ours = both("known 0")
    word = "ab" * 50_000
    assert ours.encode(word) == theirs.encode(word, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "vocabularies of the type Unigram"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "its merge of 'a' and 'b' needs a token 'ab'"),
        ({"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}}, "not numbered from 0"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "not numbered from 0"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, "unpack"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}, "byte pairs with a dropout"),
        ({"added_tokens": [{"id": -1, "content": "x"}]}, "'x' has the id -1"),
        ({"normalizer": {"type": "BertNormalizer"}}, "its normaliser BertNormalizer"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "its pre-tokeniser UnicodeScripts"),
        ({"pre_tokenizer": split({"Regex": "("})}, "makes no sense"),
        ({"pre_tokenizer": split({"String": "a"}, "Sideways")}, "'Sideways'"),
        ({"decoder": {"type": "CTC"}}, "its decoder CTC"),
        ({"decoder": []}, "its decoder"),
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 9}}, "more than 256 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 256}}, "more than 256 times as long"),
        ({"pre_tokenizer": in_turn(*[BYTES] * 5)}, "more than 256 times as long"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 3}}, "more than 4 times as long"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 17}}, "its decoder has 17 steps"),
        ({"added_tokens": [{"id": 9, "content": "a" * 1025}]}, "a token of 1,025 characters"),
        ({"added_tokens": [{"id": 99 + n, "content": "a" * n} for n in range(92)]}, "lengths of 4,186 char"),
        ({"model": {"type": "WordLevel", "vocab": {"a" * 1025: 0}}}, "a token of 1,025 characters"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises((KeyError, ValueError), match=why):
        JsonTokenizer(json.dumps({**in_letters(), **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 5}},
        {"normalizer": {"type": "Sequence", "normalizers": [SPACES] * 17}},
        {"pre_tokenizer": split({"Regex": DEEPSEEK})},
    ],
)
def test_what_may_take_long_is_not_bounded(change: dict[str, Any]) -> None:
    assert JsonTokenizer(json.dumps(in_letters())).is_bounded
    assert not JsonTokenizer(json.dumps({**in_letters(), **change})).is_bounded


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ([{"SpecialToken": {"id": "<|end|>", "type_id": 0}}], "<|end|>"),
        ([{"Sequence": {"id": "A", "type_id": 0}}], None),
        ([], None),
    ],
)
def test_what_is_put_before_a_text(first: list[object], told: str | None) -> None:
    template = {"type": "TemplateProcessing", "single": first}
    for step in (template, {"type": "Sequence", "processors": [BYTES, template]}):
        assert JsonTokenizer(json.dumps({**in_letters(), "post_processor": step})).first_added == told
    assert JsonTokenizer(json.dumps(in_letters())).first_added is None
