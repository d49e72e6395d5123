"""The bytes of single tokens, which decoding cannot show where a token is a part of a character. Pure."""

from __future__ import annotations

import re

INCOMPLETE = "�"  # how a tokenizer shows a part of a character
SPACE = "▁"  # before a word, where a vocabulary is SentencePiece's
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # the same vocabularies have these for what they cannot spell


def _byte_level() -> dict[str, int]:
    """GPT-2's alphabet: the character that stands for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


BYTE_LEVEL = _byte_level()
_SPELLED = {byte: character for character, byte in BYTE_LEVEL.items()}


def spell_bytes(text: str) -> str:
    return text.encode().decode("latin-1").translate(_SPELLED)


def byte_of(piece: str) -> int | None:
    """The byte that a token stands for in a vocabulary that spells words in letters; None: it is no such token."""
    return int(found[1], 16) if (found := _BYTE.fullmatch(piece)) is not None else None


def token_bytes(piece: str, text: str) -> bytes:
    """What a token adds to a text, in UTF-8; `piece`: as its vocabulary has it, `text`: as it is decoded by itself."""
    if (byte := byte_of(piece)) is not None and text != piece:
        return bytes([byte])
    if INCOMPLETE in text and all(character in BYTE_LEVEL for character in piece):
        return bytes(BYTE_LEVEL[character] for character in piece)
    if piece.startswith(SPACE) and not text.startswith(" "):
        text = f" {text}"  # which is left out at the beginning of a text
    return text.encode()
