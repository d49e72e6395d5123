"""The models of tokenizer.json: a part of a text, as it was cut, to the ids of its tokens.

Ids are those of the `tokenizers` package, whose order of merges and way with unknown letters are followed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from moa_shared.tokenization.token_bytes import SPACE

_MOST_WORDS, _LONGEST_WORD = 1 << 16, 256  # whose tokens are remembered
_UNUSED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")  # by language models
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


class TokenModel(Protocol):
    """What gives the tokens of a part of a text."""

    vocabulary: dict[str, int]

    def encode(self, part: str) -> Sequence[int]:
        """The ids of a part.

        Raises:
            ValueError: it has no tokens.
        """
        ...


def _read_vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary: dict[str, int] = model["vocab"]
    if set(map(type, vocabulary.values())) - {int} or min(vocabulary.values(), default=0) < 0:
        raise ValueError("its vocabulary has tokens that are not numbered from 0 on")
    return vocabulary


class BytePairs:
    """A model of the type BPE. State: the tokens of short words that it met.

    Raises:
        KeyError, TypeError, ValueError: a vocabulary or merges that make no sense, or an option that is not read.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        for option in _UNUSED:
            if model.get(option):
                raise ValueError(f"moa does not read byte pairs with a {option}")
        self.vocabulary = _read_vocabulary(model)
        self._base = max(self.vocabulary.values(), default=0) + 1
        self._merges = self._read_merges(model["merges"])
        self._takes_whole = bool(model.get("ignore_merges"))
        self._joins_unknown = bool(model.get("fuse_unk"))
        self._unknown: str | None = model.get("unk_token")
        spelled = [self.vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._bytes = spelled if model.get("byte_fallback") else [None] * 256
        # No token has a space after a letter, so none reaches from one word into the next.
        self._ends_at_spaces = SPACE in self.vocabulary and not any(
            SPACE in token.lstrip(SPACE) for token in self.vocabulary if SPACE in token
        )
        self._known: dict[str, list[int]] = {}

    def _read_merges(self, merges: Sequence[str | Sequence[str]]) -> dict[int, int]:
        """The rank and token of each pair, as one number each."""
        number, base, read = self.vocabulary, self._base, dict[int, int]()
        for rank, merge in enumerate(merges):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            try:
                read[number[left] * base + number[right]] = rank * base + number[left + right]
            except KeyError as error:
                raise ValueError(f"its merge of {left!r} and {right!r} needs a token {error}") from None
        return read

    def encode(self, part: str) -> Sequence[int]:
        """The ids of a part; letters that are not in the vocabulary are its unknown token, or bytes, or nothing."""
        if self._ends_at_spaces and not self._takes_whole:
            return [number for word in _WORDS.findall(part) for number in self._encode_word(word)]
        return self._encode_word(part)

    def _encode_word(self, word: str) -> list[int]:
        ids = self._known.get(word)
        if ids is None:
            if self._takes_whole and word in self.vocabulary:
                ids = [self.vocabulary[word]]
            else:
                ids = self._merge(self._spell(word))
            if len(self._known) >= _MOST_WORDS:
                self._known.clear()
            if len(word) <= _LONGEST_WORD:
                self._known[word] = ids
        return ids

    def _spell(self, word: str) -> list[int]:
        """A token for each letter that is one; the others as the unknown token or in bytes."""
        ids: list[int] = []
        unknown = 0  # letters that are not in `ids` yet
        for letter in word:
            if (number := self.vocabulary.get(letter)) is not None:
                ids += [*self._unknown_ids(unknown), number]
                unknown = 0
            elif None not in (spelled := [self._bytes[byte] for byte in letter.encode()]):
                ids += [each for each in spelled if each is not None]  # before unknown letters, as in `tokenizers`
            else:
                unknown += 1
        return ids + self._unknown_ids(unknown)

    def _unknown_ids(self, letters: int) -> list[int]:
        if not letters or self._unknown is None:
            return []
        if self._unknown not in self.vocabulary:
            raise ValueError(f"its token for unknown letters, {self._unknown}, is not in its vocabulary")
        return [self.vocabulary[self._unknown]] * (1 if self._joins_unknown else letters)

    def _merge(self, ids: list[int]) -> list[int]:
        """Joins neighbours, those of the lowest rank first, and of one rank the leftmost ones.

        The parts are a linked list, and those that were joined to the one before are -1.
        """
        merges, base, end = self._merges, self._base, len(ids)
        before, after = list(range(-1, end - 1)), list(range(1, end + 1))
        pairs = (ids[place] * base + ids[place + 1] for place in range(end - 1))
        queue = [(merges[pair], place) for place, pair in enumerate(pairs) if pair in merges]
        heapq.heapify(queue)
        while queue:
            merge, place = heapq.heappop(queue)
            right = after[place]
            if ids[place] < 0 or right >= end:
                continue
            number = merge % base
            now = merges.get(ids[place] * base + ids[right])
            if now is None or now % base != number:
                continue  # one of the two has been joined to another
            ids[place], ids[right] = number, -1
            after[place] = following = after[right]
            if following < end:
                before[following] = place
                if (found := merges.get(number * base + ids[following])) is not None:
                    heapq.heappush(queue, (found, place))
            if (left := before[place]) >= 0 and (found := merges.get(ids[left] * base + number)) is not None:
                heapq.heappush(queue, (found, left))
        return [number for number in ids if number >= 0]


class WholeWords:
    """A model of the type WordLevel: each part is one token.

    Raises:
        KeyError: no vocabulary.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.vocabulary = _read_vocabulary(model)
        self._unknown: str | None = model.get("unk_token")

    def encode(self, part: str) -> Sequence[int]:
        """The id of a part, or of the token for unknown ones."""
        number = self.vocabulary.get(part, self.vocabulary.get(self._unknown or ""))
        if number is None:
            raise ValueError(f"{part!r} is not in its vocabulary, and there is no token for unknown words")
        return [number]
