"""What a tokenizer.json describes: text to the ids of tokens, and back. Pure.

Invariant: ids and texts are those of the `tokenizers` package, for the types of steps and models that are read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from moa_shared.text.json_text import parse_json
from moa_shared.tokenization.added_tokens import GUARD, AddedToken, TokenFinder
from moa_shared.tokenization.bounds import check_bounds
from moa_shared.tokenization.token_models import BytePairs, TokenModel, WholeWords
from moa_shared.tokenization.token_steps import read_cut, read_decoder, read_normaliser

_MODELS: dict[str, type[BytePairs] | type[WholeWords]] = {"BPE": BytePairs, "WordLevel": WholeWords}


class JsonTokenizer:
    """A tokenizer by its description. `is_bounded`: it encodes any text in time; `first_added` is the special token
    that it puts before a text itself.

    Args:
        text: of tokenizer.json.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it makes no sense, makes text out of proportion, or has a part
            that moa does not read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        content: dict[str, Any] = parse_json(text)
        model = content["model"]
        if (kind := model.get("type", "BPE")) not in _MODELS:
            raise ValueError(f"moa does not read vocabularies of the type {kind}")
        self._model: TokenModel = _MODELS[kind](model)
        self.is_bounded = check_bounds(content)
        self.first_added = _first_added(content.get("post_processor") or {})
        self._normalise = read_normaliser(content.get("normalizer"))
        self._cut = read_cut(content.get("pre_tokenizer"))
        self._decode = read_decoder(content.get("decoder"))
        added = [AddedToken.read(token) for token in content.get("added_tokens") or ()]
        self._raw = TokenFinder([(token.content, token) for token in added if not token.normalised])
        self._normal = TokenFinder([(self._normalise(token.content), token) for token in added if token.normalised])
        self.added = added
        self.vocabulary = self._model.vocabulary | {token.content: token.number for token in added}
        self.special = {token.content: token.number for token in added if token.special}
        self._spelled = {number: token for token, number in self.vocabulary.items()}
        self._spelled |= {token.number: self._normalise(token.content) for token in added if token.normalised}

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        """The ids of a text; special tokens that are spelled out in it are found, none are added.

        Args:
            is_guarded: GUARD in it is left out, after these were looked for.

        Raises:
            ValueError: the vocabulary has no tokens for it.
        """
        ids: list[int] = []
        begins = True
        for part in self._parts(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                part = part.replace(GUARD, "") if is_guarded else part
                for piece in self._cut([part], begins):
                    ids += self._model.encode(piece)
            begins = False
        return ids

    def _parts(self, text: str) -> Iterator[str | int]:
        """The normalised parts of a text between added tokens, and the ids of these."""
        for part in self._raw.split(text):
            if isinstance(part, int):
                yield part
            else:
                yield from self._normal.split(self._normalise(part))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens; ids of no token are left out."""
        spelled = [self._spelled[number] for number in ids if number in self._spelled]
        return "".join(self._decode([each for each in spelled if not (skip_special_tokens and each in self.special)]))

    def token(self, number: int) -> str | None:
        """How the vocabulary spells a token; None: there is no such token."""
        return self._spelled.get(number)


def _first_added(step: dict[str, Any]) -> str | None:
    """The special token that a post-processor puts before a text."""
    for each in step.get("processors", [step]):
        if each.get("type") == "TemplateProcessing":
            first = each["single"][0] if each["single"] else {}
            return str(first["SpecialToken"]["id"]) if "SpecialToken" in first else None
    return None
