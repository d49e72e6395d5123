"""The tokens of a text with what each adds to it, and with its chances. Pure.

State: the tokens so far. Invariant: the texts of the tokens add up to the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import TokenChances

from moa_client.conversation.answer_text import TextStream


@dataclass(frozen=True, slots=True)
class ToldToken:
    """One token of a text.

    Args:
        text: what it adds to the text; of the tokens of one character the last one adds it.
        start: characters of the text before it.
        chance: the natural logarithm of its probability.
        likeliest: the likeliest tokens in its place, in UTF-8, with theirs.
    """

    text: str
    start: int
    chance: float
    likeliest: tuple[tuple[bytes, float], ...]

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class ToldTokens:
    """The tokens of one text; `decode`: text of some tokens, as the whole text is made."""

    def __init__(self, tokenizer: Tokenizer, decode: Callable[[Sequence[int]], str]) -> None:
        self.tokens: list[ToldToken] = []
        self._tokenizer = tokenizer
        self._stream = TextStream(decode)

    def take(self, tokens: Sequence[int], chances: Sequence[TokenChances]) -> None:
        for token, each in zip(tokens, chances, strict=True):
            likeliest = zip(map(self._tokenizer.token_bytes, each.tokens), each.chances, strict=True)
            start = self.tokens[-1].end if self.tokens else 0
            self.tokens.append(ToldToken(self._stream.push((token,)), start, each.chosen, tuple(likeliest)))

    def finish(self, text: str) -> None:
        """Ends the text; `text`: as it was sent, which may leave its end out."""
        if self.tokens:
            self.tokens[-1] = replace(self.tokens[-1], text=self.tokens[-1].text + self._stream.finish())
        for number, token in enumerate(self.tokens):
            start = min(token.start, len(text))
            self.tokens[number] = replace(token, text=token.text[: len(text) - start], start=start)
