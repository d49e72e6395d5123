"""Text of peers, files and models: whether a string is text, and made harmless for terminals and logs.

Pure. Halves of surrogate pairs, which Python makes of bytes that are not UTF-8 and JSON has as escapes, are no text: no
encoding can write them. They and control characters never pass, nor on one line what changes the direction of text.
"""

import json
import re
import unicodedata
from typing import Any

_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def without_controls(text: str) -> str:
    """Text of any number of lines that moves no cursor and sets no colours."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def plain_line(text: str, most: int | None = None) -> str:
    """One line of text, of at most `most` characters."""
    if not text.isprintable():
        text = "".join("\N{REPLACEMENT CHARACTER}" if each in _TURNING else _harmless(each) for each in text)
        text = " ".join(text.splitlines())
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def _harmless(character: str) -> str:
    if character in "\t\r":
        return "    " if character == "\t" else ""
    is_harmful = character != "\n" and unicodedata.category(character) in ("Cc", "Cs")
    return "\N{REPLACEMENT CHARACTER}" if is_harmful else character


_HALVES = re.compile("[\ud800-\udfff]")


def is_text(string: str) -> bool:
    return string.isascii() or _HALVES.search(string) is None


def marked_text(string: str) -> str:
    """The string with a mark in place of each character that is no text."""
    return string if is_text(string) else _HALVES.sub("\N{REPLACEMENT CHARACTER}", string)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError: no JSON, or nested so deeply that reading would exhaust the stack."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def parse_request(text: str | bytes) -> Any:
    """The value of a JSON text that others have sent, all of whose strings are text.

    Half a surrogate pair, of a text that was cut within a character, is marked: a history with one would be refused.
    """
    value = parse_json(text)
    try:
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    return value if is_text(written) else parse_json(marked_text(written))
