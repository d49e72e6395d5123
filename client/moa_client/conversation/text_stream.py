"""Text of an answer as its tokens come: whole characters only, and nothing that may yet become a stop string.

Pure over a decode function. Invariant: what was given out never changes, and all pieces together are the text of all
tokens, cut before the first stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

INCOMPLETE = "�"  # how a tokenizer shows the first bytes of a character


class TextStream:
    """Turns tokens into pieces of text. `decode`: text of some tokens. `stop`: strings before which the text ends."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._prefix = 0  # tokens before it are given out; decoded again from there for the sake of joins
        self._read = 0  # tokens before it are in `_held` or given out
        self._held = ""
        self._ended = False
        self._early = 0  # characters that were given out before it was their time

    def restore(self, tokens: Sequence[int], given: str) -> None:
        """Continues a stream that was given these tokens, in pieces of any size, and has given out this text.

        That may be more than is certain after these tokens: the stream had ended with them.
        """
        text = "".join([self.push([token]) for token in tokens])
        self._early = max(0, len(given) - len(text))
        due = text[len(given) :]
        self._held = due + self._held
        self._ended &= not due  # a stop string ends it again, when what comes before it is given out

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens; returns the text that is now certain."""
        self._tokens.extend(tokens)
        before = self._decode(self._tokens[self._prefix : self._read])
        now = self._decode(self._tokens[self._prefix :])
        if len(now) > len(before) and not now.endswith(INCOMPLETE):
            self._held += now[len(before) :]
            self._prefix, self._read = self._read, len(self._tokens)
        return self._release(final=False)

    def finish(self, *, is_cut: bool = False) -> str:
        """Ends the stream; returns the rest of the text, if it is cut without a character that has only begun."""
        before = self._decode(self._tokens[self._prefix : self._read])
        rest = self._decode(self._tokens[self._prefix :])[len(before) :]
        self._held += rest.rstrip(INCOMPLETE) if is_cut else rest
        self._read = self._prefix = len(self._tokens)
        return self._release(final=True)

    def fork(self) -> TextStream:
        """An independent copy, as if it had been given the same tokens."""
        other = copy(self)
        other._tokens = list(self._tokens)
        return other

    def _release(self, *, final: bool) -> str:
        if self._ended:
            return ""
        cuts = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if cuts:
            self._ended = True
            sure = min(cuts)
        else:
            sure = len(self._held) - (0 if final else self._possible_stop())
        text, self._held = self._held[:sure], self._held[sure:]
        new = text[self._early :]
        self._early -= len(text) - len(new)
        return new

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
