"""A tokenizer.json by the `tokenizers` package: text to the ids of tokens, and back.

Invariant: what the package raises is a ValueError, its panics too, which are BaseExceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from tokenizers import PreTokenizedString, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from moa_shared.text.json_text import parse_json
from moa_shared.tokenization.bounds import check_bounds

GUARD = "\ufdd0"  # no character: within what spells a token, it keeps that from being found


class JsonTokenizer:
    """A tokenizer by its description. `is_bounded`: it encodes any text in time.

    Args:
        text: of tokenizer.json.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_bounded = check_bounds(parse_json(text))
        self._lock, self._guard = Lock(), _Guard()
        with _failures():
            self._package = Tokenizer.from_str(text)
            self._package.no_truncation()
            self._package.no_padding()
            guard, cut = PreTokenizer.custom(self._guard), self._package.pre_tokenizer
            self._package.pre_tokenizer = guard if cut is None else Sequence([guard, cut])
            self.vocabulary: dict[str, int] = self._package.get_vocab(with_added_tokens=True)
            added = self._package.get_added_tokens_decoder()
        self.added = frozenset(token.content for token in added.values())
        self.special = {token.content: number for number, token in added.items() if token.special}

    def encode(self, text: str, *, is_guarded: bool = False, adds_special: bool = False) -> list[int]:
        """The ids of a text; special tokens that are spelled out in it are found.

        Args:
            is_guarded: GUARD in it is left out, after these were looked for.
            adds_special: with those that the file adds to a text.

        Raises:
            ValueError: the vocabulary has no tokens for it.
        """
        with self._lock, _failures():
            self._guard.is_left_out = is_guarded and GUARD in text
            ids: list[int] = self._package.encode(text, add_special_tokens=adds_special).ids
            return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens; ids of no token are left out."""
        with _failures():
            text: str = self._package.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text

    def token(self, number: int) -> str | None:
        """How the vocabulary spells a token; None: there is no such token."""
        piece: str | None = self._package.id_to_token(number)
        return piece


class _Guard:
    is_left_out = False

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        if self.is_left_out:
            text.normalize(lambda part: part.replace(GUARD, ""))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (MemoryError, ValueError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # it cannot be imported
            raise
        raise ValueError(str(error)) from None
