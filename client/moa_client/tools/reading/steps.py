"""Reads forms of text as generators that are sent one character after the other. Pure.

What is read depends on the characters alone, never on the pieces in which they come. `Mismatch` says that the form
is another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from moa_client.tools.reading.json_scanner import SPACE, JsonScanner, Mismatch, Scan
from moa_client.tools.reading.markers import MarkerSearch

T = TypeVar("T")
Steps = Generator[None, str, T]


def skip_space(char: str | None = None) -> Steps[str]:
    """The first character that is no space, from `char` on if there is one."""
    if char is None:
        char = yield
    while char in SPACE:
        char = yield
    return char


def expect(text: str) -> Steps[None]:
    """Reads this very text."""
    for wanted in text:
        if (yield) != wanted:
            raise Mismatch


def read_until(end: str, most: int) -> Steps[str]:
    """The text before `end`, of so many characters at most."""
    characters: list[str] = []
    while "".join(characters[-len(end) :]) != end:
        if len(characters) == most + len(end):
            raise Mismatch
        characters.append((yield))
    return "".join(characters[: -len(end)])


def read_text(ends: Sequence[str], write: Callable[[str], None], first: str = "") -> Steps[str]:
    """Reads text that begins with `first`, up to one of these markers, and writes it as it comes; the marker."""
    search = MarkerSearch()
    search.add(first)
    while True:
        while taken := search.take(ends):
            if taken in ends:
                return taken
            write(taken)
        search.add((yield))


def read_json(first: str, write: Callable[[str], None]) -> Steps[str | None]:
    """Reads a JSON value that begins with `first` and writes each of its characters.

    Returns:
        The character after it, if that had to be read.
    """
    scanner, char = JsonScanner(), first
    while True:
        scan = scanner.push(char)
        if scan is Scan.PAST:
            return char
        write(char)
        if scan is Scan.WHOLE:
            return None
        char = yield


def read_string(first: str) -> Steps[str]:
    """The value of a JSON string that begins with `first`."""
    if first != '"':
        raise Mismatch
    characters: list[str] = []
    yield from read_json(first, characters.append)
    value: str = json.loads("".join(characters))
    return value
