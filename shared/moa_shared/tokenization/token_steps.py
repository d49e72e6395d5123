"""The steps of tokenizer.json around its model: normalisers, pre-tokenisers (which cut text) and decoders. Pure.

Each does what the step of this name in the `tokenizers` package does; expressions are read by the `regex` package.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import regex

from moa_shared.tokenization.patterns import GPT_2
from moa_shared.tokenization.token_bytes import BYTE_LEVEL, INCOMPLETE, byte_of, spell_bytes

Value = TypeVar("Value")
Step = Mapping[str, Any]
Normaliser = Callable[[str], str]
Cut = Callable[[Sequence[str], bool], Sequence[str]]  # parts, and whether they begin the text, to smaller parts
Decoder = Callable[[Sequence[str]], Sequence[str]]


def read_normaliser(step: Step | None) -> Normaliser:
    """The function that a normaliser is.

    Raises:
        KeyError, TypeError, ValueError: one that makes no sense, or that moa does not read.
    """
    match step:
        case None:
            return str
        case {"type": "Sequence", "normalizers": steps}:
            return partial(_in_turn, [read_normaliser(each) for each in steps])
        case {"type": "Prepend", "prepend": str(text)}:
            return lambda given: text + given if given else given
        case {"type": "Replace", "pattern": pattern, "content": str(content)}:
            expression = _expression(pattern)
            return lambda given: expression.sub(lambda _: content, given)
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}:
            return partial(unicodedata.normalize, form)
        case _:
            raise _unread("normaliser", step)


def _in_turn(steps: Iterable[Callable[[Value], Value]], value: Value) -> Value:
    for step in steps:
        value = step(value)
    return value


def read_cut(step: Step | None) -> Cut:
    """The function that a pre-tokeniser is.

    Raises:
        KeyError, TypeError, ValueError: one that makes no sense, or that moa does not read.
    """
    match step:
        case None:
            return lambda parts, _: parts
        case {"type": "Sequence", "pretokenizers": steps}:
            return partial(_cut_in_turn, [read_cut(each) for each in steps])
        case {"type": "Split", "pattern": pattern, "behavior": str(behaviour)}:
            return _each(_splitter(_expression(pattern), behaviour, inverted=bool(step.get("invert"))))
        case {"type": "ByteLevel"}:
            words = _splitter(regex.compile(GPT_2), "Isolated") if step.get("use_regex", True) else None
            return _each(partial(_spell_bytes, words, bool(step.get("add_prefix_space"))))
        case {"type": "Digits", "individual_digits": alone}:
            return _each(_splitter(regex.compile(r"\p{N}"), "Isolated" if alone else "Contiguous"))
        case {"type": "Punctuation"}:
            return _each(_splitter(regex.compile(r"[\p{P}!-/:-@\[-`{-~]"), step.get("behavior", "Isolated")))
        case {"type": "WhitespaceSplit"}:
            return _each(_splitter(regex.compile(r"\s"), "Removed"))
        case {"type": "Metaspace", "replacement": str(space)}:
            words = _splitter(regex.compile(regex.escape(space)), "MergedWithNext") if step.get("split", True) else None
            legacy = "always" if step.get("add_prefix_space", True) else "never"
            return partial(_cut_metaspace, space, step.get("prepend_scheme") or legacy, words)
        case _:
            raise _unread("pre-tokeniser", step)


def _cut_in_turn(steps: Iterable[Cut], parts: Sequence[str], begins: bool) -> Sequence[str]:
    for step in steps:
        parts = step(parts, begins)
    return parts


def _each(cut: Callable[[str], Iterable[str]]) -> Cut:
    return lambda parts, _: [piece for part in parts for piece in cut(part) if piece]


def _splitter(pattern: regex.Pattern[str], behaviour: str, *, inverted: bool = False) -> Callable[[str], Sequence[str]]:
    """Cuts a text at the matches of an expression, or, if inverted, at what is between them."""
    if behaviour not in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        raise ValueError(f"it cuts text in the way {behaviour!r}, which moa does not read")

    def split(text: str) -> Sequence[str]:
        if behaviour == "Isolated":
            return [piece for piece, _ in _pieces(pattern, text)]
        if behaviour == "Removed":
            return [piece for piece, matches in _pieces(pattern, text) if matches is inverted]
        return _merged([(piece, matches is not inverted) for piece, matches in _pieces(pattern, text)], behaviour)

    return split


def _pieces(pattern: regex.Pattern[str], text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with whether it is a match."""
    end = 0
    for match in pattern.finditer(text):
        start, stop = match.span()
        if end < start:
            yield text[end:start], False
        if start < stop:
            yield text[start:stop], True
        end = stop
    if end < len(text):
        yield text[end:], False


def _merged(pieces: Sequence[tuple[str, bool]], behaviour: str) -> Sequence[str]:
    """Pieces of which those that match are joined to a neighbour, or to each other."""
    if behaviour == "Contiguous":
        return ["".join(piece for piece, _ in row) for _, row in groupby(pieces, itemgetter(1))]
    forwards = behaviour == "MergedWithPrevious"
    merged: list[str] = []
    before = True  # whether the piece before this one matches
    for piece, matches in pieces if forwards else reversed(pieces):
        if before or not matches:
            merged.append(piece)
        else:
            merged[-1] = merged[-1] + piece if forwards else piece + merged[-1]
        before = matches
    return merged if forwards else merged[::-1]


def _spell_bytes(words: Callable[[str], Sequence[str]] | None, prefix: bool, text: str) -> Sequence[str]:
    """Pieces in the byte alphabet."""
    if prefix and not text.startswith(" "):
        text = f" {text}"
    return [spell_bytes(piece) for piece in (words(text) if words else (text,))]


def _cut_metaspace(
    space: str, scheme: str, words: Callable[[str], Sequence[str]] | None, parts: Sequence[str], begins: bool
) -> Sequence[str]:
    cut: list[str] = []
    for index, part in enumerate(parts):
        text = part.replace(" ", space)
        is_first = begins and index == 0
        if not text.startswith(space) and (scheme == "always" or (scheme == "first" and is_first)):
            text = space + text
        cut += words(text) if words else [text]
    return cut


def read_decoder(step: Step | None) -> Decoder:
    """The function that a decoder is: the spellings of tokens to parts of a text.

    Raises:
        KeyError, TypeError, ValueError: one that makes no sense, or that moa does not read.
    """
    match step:
        case None:
            return lambda tokens: [" ".join(tokens)]
        case {"type": "Sequence", "decoders": steps}:
            return partial(_in_turn, [read_decoder(each) for each in steps])
        case {"type": "ByteLevel"}:
            return lambda tokens: [b"".join(map(_bytes_of, tokens)).decode("utf-8", "replace")]
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)}:
            return lambda tokens: [token.replace(text, content) for token in tokens]
        case {"type": "ByteFallback"}:
            return _join_bytes
        case {"type": "Fuse"}:
            return lambda tokens: ["".join(tokens)]
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": int(stop)}:
            return lambda tokens: [_stripped(token, content, start, stop) for token in tokens]
        case {"type": "Metaspace", "replacement": str(space)}:
            keeps_first = step.get("prepend_scheme") == "never" or step.get("add_prefix_space") is False
            return lambda tokens: [
                token.replace(space, " " if index or keeps_first else "") for index, token in enumerate(tokens)
            ]
        case _:
            raise _unread("decoder", step)


@lru_cache(1 << 16)
def _bytes_of(token: str) -> bytes:
    try:
        return bytes([BYTE_LEVEL[character] for character in token])
    except KeyError:  # an added token, which is spelled in letters
        return token.encode()


def _join_bytes(tokens: Sequence[str]) -> Sequence[str]:
    """Letters of tokens that are bytes; of bytes in a row that make no letters one mark each."""
    joined: list[str] = []
    row = bytearray()
    for token in (*tokens, None):
        byte = None if token is None else byte_of(token)
        if byte is not None:
            row.append(byte)
            continue
        if row:
            try:
                joined.append(row.decode())
            except UnicodeDecodeError:
                joined += [INCOMPLETE] * len(row)
            row.clear()
        if token is not None:
            joined.append(token)
    return joined


def _stripped(token: str, content: str, start: int, stop: int) -> str:
    for _ in range(min(start, len(token))):
        token = token.removeprefix(content)
    for _ in range(min(stop, len(token))):
        token = token.removesuffix(content)
    return token


def _expression(pattern: Mapping[str, str]) -> regex.Pattern[str]:
    """The expression of a step: its own, or one that finds a text. An empty text is found nowhere."""
    text = pattern.get("Regex")
    try:  # version 1 reads sets in sets, as `tokenizers` does
        return regex.compile(text or (regex.escape(pattern["String"]) or r"(?!)"), regex.VERSION1)
    except regex.error as error:
        raise ValueError(f"the expression {text!r} makes no sense: {error}") from None


def _unread(kind: str, step: Step | None) -> ValueError:
    name = step.get("type") if isinstance(step, Mapping) else step
    return ValueError(f"moa does not read its {kind} {name}")
