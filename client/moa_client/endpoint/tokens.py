"""The tokens of a text with what each adds to it, and with its chances. Pure.

State: the tokens so far; those that are only a part of a character wait for the rest of it. Invariant: the texts of the
tokens, and their bytes, add up to the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.sampling.settings import TokenChances

from moa_client.conversation.answer_text import TextStream


@dataclass(frozen=True, slots=True)
class ToldToken:
    """One token of a text.

    Args:
        text: what it adds to the text; of the tokens of one character the last one adds it.
        data: the same in UTF-8, as far as a character's tokens can be told apart by their bytes.
        start: characters of the text before it.
        chance: the natural logarithm of its probability.
        likeliest: the likeliest tokens in its place, in UTF-8, with theirs.
    """

    text: str
    data: bytes
    start: int
    chance: float
    likeliest: tuple[tuple[bytes, float], ...]

    @property
    def end(self) -> int:
        """Characters of the text up to its end, or to that of the character that it is a part of."""
        return self.start + (len(self.text) or bool(self.data))


class ToldTokens:
    """The tokens of one text; `decode`: text of some tokens, as the whole text is made."""

    def __init__(self, tokenizer: Tokenizer, decode: Callable[[Sequence[int]], str]) -> None:
        self.tokens: list[ToldToken] = []  # but for those that wait
        self._length = 0  # characters of what they add up to
        self._tokenizer = tokenizer
        self._decode = decode
        self._special = frozenset(tokenizer.special_tokens.values())
        self._stream = TextStream(decode)
        self._waiting: list[tuple[int, TokenChances]] = []

    def __len__(self) -> int:
        return len(self.tokens) + len(self._waiting)

    def take(self, tokens: Sequence[int], chances: Sequence[TokenChances]) -> None:
        for token, each in zip(tokens, chances, strict=True):
            self._waiting.append((token, each))
            if piece := self._stream.push((token,)):
                self._add(piece)

    def finish(self, text: str) -> None:
        """Ends the text; `text`: as it was sent, which may leave its end out."""
        self._add(self._stream.finish())
        characters, nbytes = len(text), len(text.encode())
        for number, token in enumerate(self.tokens):
            start, data = min(token.start, characters), token.data[:nbytes]
            self.tokens[number] = replace(token, text=token.text[: characters - start], data=data, start=start)
            nbytes -= len(data)

    def _add(self, piece: str) -> None:
        """Divides a piece of the text among the tokens that wait."""
        parts = [self._bytes_of(token) for token, _ in self._waiting]
        if b"".join(parts) != piece.encode():  # a space that a tokenizer leaves out, or bytes that are no text
            parts = [b""] * (len(parts) - 1) + [piece.encode()] * bool(parts)
        characters = codecs.getincrementaldecoder("utf-8")()
        for part, (_, chances) in zip(parts, self._waiting, strict=True):
            likeliest = zip(map(self._tokenizer.token_bytes, chances.tokens), chances.chances, strict=True)
            text = characters.decode(part)
            self.tokens.append(ToldToken(text, part, self._length, chances.chosen, tuple(likeliest)))
            self._length += len(text)
        self._waiting.clear()

    def _bytes_of(self, token: int) -> bytes:
        return self._decode([token]).encode() if token in self._special else self._tokenizer.token_bytes(token)
