"""The bytes of single tokens, as vocabularies of both kinds have them."""

from __future__ import annotations

import pytest
from moa_shared.tokenization.token_bytes import token_bytes


@pytest.mark.parametrize(
    ("piece", "text", "expected"),
    [
        ("Ġcat", " cat", b" cat"),
        ("Ã", "�", b"\xc3"),
        ("Ġâĳ", " �", b" \xe2\x91"),
        ("<0xE2>", "�", b"\xe2"),
        ("<0x0A>", "\n", b"\n"),
        ("<0x0A>", "<0x0A>", b"<0x0A>"),
        ("▁cat", "cat", b" cat"),
        ("▁cat", " cat", b" cat"),
        ("<|end|>", "<|end|>", b"<|end|>"),
        ("�", "�", "�".encode()),
    ],
)
def test_a_token_is_its_bytes(piece: str, text: str, expected: bytes) -> None:
    assert token_bytes(piece, text) == expected
