"""Checks JSON a character at a time, so that it can be passed on before it is whole. Pure.

Stricter than Python's reader: NaN and the like are no JSON, and brackets may not be nested too deeply for others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

MOST_DEPTH = 64  # of brackets in brackets: what reads the whole recursively must be able to
SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_HEX = "0123456789abcdefABCDEF"


class Mismatch(Exception):
    """The text is not of the form that is being read; its last character is the first that is wrong."""


class Scan(Enum):
    """How far a value is after a character."""

    MORE = auto()
    WHOLE = auto()
    PAST = auto()  # the value was whole before the character: only a number does not say where it ends


class JsonScanner:
    """The state of reading one JSON value."""

    def __init__(self) -> None:
        self._next: Callable[[str], Scan] = self._value
        self._open: list[str] = []  # the brackets that will close what is open
        self._number: list[str] = []
        self._word = ""
        self._hex = 0  # digits of a \u that are missing
        self._is_key = False

    def push(self, char: str) -> Scan:
        """Reads a character.

        Raises:
            Mismatch: no JSON value continues with it.
        """
        return self._next(char)

    def _value(self, char: str) -> Scan:
        if char == '"':
            self._is_key, self._next = False, self._string
        elif char in "{[":
            if len(self._open) == MOST_DEPTH:
                raise Mismatch
            self._open.append("}" if char == "{" else "]")
            self._next = self._first_key if char == "{" else self._first_item
        elif char in "-0123456789":
            self._number, self._next = [char], self._in_number
        elif char in _WORDS:
            self._word, self._next = _WORDS[char], self._in_word
        elif char not in SPACE:
            raise Mismatch
        return Scan.MORE

    def _first_item(self, char: str) -> Scan:
        return self._close() if char == "]" else self._value(char)

    def _first_key(self, char: str) -> Scan:
        return self._close() if char == "}" else self._key(char)

    def _key(self, char: str) -> Scan:
        if char == '"':
            self._is_key, self._next = True, self._string
        elif char not in SPACE:
            raise Mismatch
        return Scan.MORE

    def _colon(self, char: str) -> Scan:
        if char == ":":
            self._next = self._value
        elif char not in SPACE:
            raise Mismatch
        return Scan.MORE

    def _string(self, char: str) -> Scan:
        if char < " ":
            raise Mismatch
        if char == "\\":
            self._next = self._escape
        elif char == '"' and self._is_key:
            self._next = self._colon
        elif char == '"':
            return self._end()
        return Scan.MORE

    def _escape(self, char: str) -> Scan:
        if char not in '"\\/bfnrtu':
            raise Mismatch
        self._hex, self._next = 4, self._in_hex if char == "u" else self._string
        return Scan.MORE

    def _in_hex(self, char: str) -> Scan:
        if char not in _HEX:
            raise Mismatch
        self._hex -= 1
        if not self._hex:
            self._next = self._string
        return Scan.MORE

    def _in_number(self, char: str) -> Scan:
        if char in "+-.eE0123456789":
            self._number.append(char)
            return Scan.MORE
        if not _NUMBER.fullmatch("".join(self._number)):
            raise Mismatch
        return Scan.PAST if self._end() is Scan.WHOLE else self._next(char)

    def _in_word(self, char: str) -> Scan:
        if not self._word.startswith(char):
            raise Mismatch
        self._word = self._word[1:]
        return Scan.MORE if self._word else self._end()

    def _after(self, char: str) -> Scan:
        if char == ",":
            self._next = self._key if self._open[-1] == "}" else self._value
        elif char == self._open[-1]:
            return self._close()
        elif char not in SPACE:
            raise Mismatch
        return Scan.MORE

    def _close(self) -> Scan:
        self._open.pop()
        return self._end()

    def _end(self) -> Scan:
        self._next = self._after
        return Scan.MORE if self._open else Scan.WHOLE


def scan(text: str) -> Scan | None:
    """How far a value is after a text; None: the text is not the beginning of one value, with space around it."""
    scanner, reached = JsonScanner(), Scan.MORE
    try:
        for char in text:
            if reached is Scan.MORE:
                reached = scanner.push(char)
                if reached is Scan.WHOLE:
                    continue
            if reached is not Scan.MORE and char not in SPACE:
                return None
    except Mismatch:
        return None
    return reached


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, with space around it."""
    return scan(f"{text} ") in (Scan.WHOLE, Scan.PAST)
