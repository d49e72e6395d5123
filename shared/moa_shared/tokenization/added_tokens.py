"""Tokens that are found in a text before it is cut, as tokenizer.json has them (`added_tokens`). Pure.

Follows the `tokenizers` package: of tokens that begin at one place the longest is found, and those of normalised text
are looked for in what the others leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import regex

GUARD = "\ufdd0"  # no character: within what spells a token, it keeps that from being found
_LETTER = regex.compile(r"\w")
_SPACES_BEFORE, _SPACES_AFTER = regex.compile(r"(?r)\s*"), regex.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in text. `takes_left` and `takes_right`: with the spaces there."""

    number: int
    content: str
    special: bool = False
    normalised: bool = False
    alone: bool = False  # only where no letter is beside it
    takes_left: bool = False
    takes_right: bool = False

    @classmethod
    def read(cls, token: dict[str, Any]) -> AddedToken:
        """A token of tokenizer.json.

        Raises:
            KeyError, ValueError: it has no id or content, or an id that is no number from 0 on.
        """
        if (number := int(token["id"])) < 0:
            raise ValueError(f"its added token {token['content']!r} has the id {number}")
        flags = (bool(token.get(name)) for name in ("special", "normalized", "single_word", "lstrip", "rstrip"))
        return cls(number, str(token["content"]), *flags)


class TokenFinder:
    """Finds tokens in a text.

    Args:
        tokens: each with how it is spelled in the text.
    """

    def __init__(self, tokens: Sequence[tuple[str, AddedToken]]) -> None:
        self._tokens = {spelled: token for spelled, token in tokens if spelled}
        lengths: dict[str, set[int]] = {}
        for spelled in self._tokens:
            lengths.setdefault(spelled[0], set()).add(len(spelled))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = regex.compile("[" + "".join(map(regex.escape, lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """The parts of a text between tokens, and the tokens' ids."""
        end = 0  # of what was given
        for start, token, stop in self._matches(text):
            if token.alone and ((start and _LETTER.match(text, start - 1)) or _LETTER.match(text, stop)):
                continue
            if token.takes_left and (spaces := _SPACES_BEFORE.match(text, end, start)):
                start = spaces.start()
            if token.takes_right and (spaces := _SPACES_AFTER.match(text, stop)):
                stop = spaces.end()
            if end < start:
                yield text[end:start]
            yield token.number
            end = stop
        if end < len(text):
            yield text[end:]

    def guarded(self, text: str, but: Sequence[str] = ()) -> str:
        """The text with GUARD within each token that it spells, also where one overlaps another.

        Args:
            but: texts whose tokens are left alone.
        """
        parts, end = [], 0
        for begin in self._first.finditer(text) if self._first is not None else ():
            start = begin.start()
            spelled = {text[start : start + length] for length in self._lengths[text[start]]} & self._tokens.keys()
            if any(not any(token in each for each in but) for token in spelled):
                parts += [text[end : start + 1], GUARD]
                end = start + 1
        return "".join([*parts, text[end:]])

    def _matches(self, text: str) -> Iterator[tuple[int, AddedToken, int]]:
        """Where tokens begin and end, from left to right."""
        place = 0
        while self._first is not None and (begin := self._first.search(text, place)):
            start = begin.start()
            place = start + 1
            for length in self._lengths[text[start]]:
                if (token := self._tokens.get(text[start : start + length])) is not None:
                    place = start + length
                    yield start, token, place
                    break
