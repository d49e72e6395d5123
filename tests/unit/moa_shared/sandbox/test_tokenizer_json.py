"""What a tokenizer.json may do, and that its failures are errors like others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sandbox.tokenizer_json import BYTE_LEVEL, JsonTokenizer, spell_bytes, token_bytes

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
ADDED = [{**FLAGS, "id": 300, "content": "<|end|>", "special": True}]
ADDED += [{**FLAGS, "id": 301, "content": "<x y>", "special": True, "normalized": True}]


def described(**changes: Any) -> dict[str, Any]:
    vocabulary = {piece: number for number, piece in enumerate([*map(chr, range(32, 127)), "▁", "ab", "é"])}
    model = {"type": "BPE", "unk_token": None, "vocab": vocabulary, "merges": [["a", "b"]]}
    return {
        "version": "1.0", "added_tokens": ADDED, "normalizer": SPACES, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, "model": model, **changes,
    }  # fmt: skip


def read(**changes: Any) -> JsonTokenizer:
    return JsonTokenizer(json.dumps(described(**changes)))


def in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern: dict[str, str], behaviour: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": False}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "out of vocabulary"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "."),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}, "byte pairs with a dropout"),
        ({"normalizer": {"type": "Nothing"}}, "."),
        ({"pre_tokenizer": split({"Regex": "("})}, "."),
        ({"pre_tokenizer": split({"String": "a"}, "Sideways")}, "."),
        ({"decoder": {"type": "CTC"}}, "its decoder CTC"),
        ({"decoder": {"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""}}, "its decoder Replace"),
        ({"decoder": []}, "."),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 3}}, "more than 4 times as long"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 17}}, "its decoder has 17 steps"),
        ({"added_tokens": [{"id": 9, "content": "a" * 1025}]}, "a token of 1,025 characters"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError), match=why):
        read(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 5}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 16}},
        {"pre_tokenizer": in_turn(*[BYTES] * 3)},
        {"normalizer": {"type": "Sequence", "normalizers": [SPACES] * 17}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": split({"Regex": r"\p{L}+"})},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}},
    ],
)
def test_what_may_take_long_is_not_bounded(change: dict[str, Any]) -> None:
    assert read().is_bounded
    assert not read(**change).is_bounded


def test_what_the_package_raises_is_an_error_like_others() -> None:
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 9}
    with pytest.raises(ValueError, match="index out of bounds"):  # a panic of the package
        read(decoder=strip).decode([read().vocabulary["a"]])
    with pytest.raises(ValueError, match="too small"):
        read().decode([-1])
    assert read().decode([9999]) == ""


@given(st.lists(st.sampled_from(["<|end|>", "<x y>", "<", "ab", " ", "x y>", "<|end|>>"])).map("".join))
def test_what_is_guarded_has_no_special_tokens(text: str) -> None:
    tokenizer = Tokenizer(_READ)
    special = set(tokenizer.special_tokens.values())
    ids = tokenizer.encode(tokenizer.as_letters(text), is_guarded=True)
    assert not special.intersection(ids)
    assert tokenizer.decode(ids) == text
    assert special.intersection(tokenizer.encode(f"<|end|>{tokenizer.as_letters(text)}", is_guarded=True))


_READ = read()


@pytest.mark.parametrize(
    ("piece", "text", "expected"),
    [
        ("Ġhi", " hi", b" hi"),
        ("Ã", "�", b"\xc3"),
        ("<0x0A>", "\n", b"\n"),
        ("<0xC3>", "�", b"\xc3"),
        ("<0x41>", "<0x41>", b"<0x41>"),
        ("▁hi", "hi", b" hi"),
        ("▁", "", b" "),
        ("�", "�", "�".encode()),
    ],
)
def test_the_bytes_of_a_token(piece: str, text: str, expected: bytes) -> None:
    assert token_bytes(piece, text) == expected


def test_the_alphabet_of_bytes() -> None:
    assert len(BYTE_LEVEL) == 256
    assert [BYTE_LEVEL[each] for each in spell_bytes("é ")] == list("é ".encode())
