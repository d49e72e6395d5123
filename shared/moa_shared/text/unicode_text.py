"""Whether a string is text. Pure; asked wherever text enters a program.

Halves of surrogate pairs are no text: no encoding can write them. Python makes them of bytes that are not UTF-8 (of the
command line, the environment and a terminal), and JSON has them as escapes.
"""

from __future__ import annotations

import re

_HALVES = re.compile("[\ud800-\udfff]")


def is_text(string: str) -> bool:
    """Whether all of a string is text."""
    return string.isascii() or _HALVES.search(string) is None


def marked_text(string: str) -> str:
    """The string with a mark in place of each character that is no text."""
    return string if is_text(string) else _HALVES.sub("\N{REPLACEMENT CHARACTER}", string)
