"""An answer as surfaces show it: its reasoning apart from its text, as both come. Pure.

A surface learns from `ReasoningMarks` how its model marks reasoning, and whether an answer begins within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from moa_client.tools.reading.pieces import TextPiece
from moa_client.tools.thinking import ReasoningPiece, Thinking, ThinkingReader


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """How the answers of one model mark reasoning.

    Args:
        openings, closings: markers around it.
        repeated: it may come anywhere; otherwise only where an answer begins, with nothing but white space before it.
        others: further markers in an answer's text that are not shown.
        opened: the values of `reasoning_effort` with which the prompt has opened reasoning, so that the answer begins
            within it; "": nothing was asked.
        efforts: the values of `reasoning_effort` that the model can be asked for.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]
    repeated: bool = False
    others: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All markers."""
        return self.openings + self.closings + self.others

    def split(self, effort: str | None) -> AnswerSplit:
        """An answer before its first character.

        Args:
            effort: that was asked of it.
        """
        thinking = Thinking("", self.openings, self.closings, self.repeated, self.others)
        return AnswerSplit(ThinkingReader(thinking, is_open=(effort or "") in self.opened, drops_others=True))


def marks_from(fields: Mapping[str, Any] | None) -> ReasoningMarks | None:
    """The marks that `dataclasses.asdict` has made an object of; None: the model marks no reasoning."""
    if fields is None:
        return None
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    return ReasoningMarks(**values)


class AnswerSplit:
    """One answer, divided into its reasoning and its text. What comes out depends on the text alone, not on its pieces.

    State: how far the committed text was read, and what came out.
    """

    def __init__(self, reader: ThinkingReader | None = None) -> None:
        self.reasoning = ""  # committed, as the next two
        self.text = ""
        self.reasoning_tokens = 0  # with those that mark it
        self._reader = reader  # None: the model marks no reasoning
        self._read = 0  # characters
        self._tokens = 0

    @property
    def is_thinking(self) -> bool:
        """Whether the committed text ends within reasoning."""
        return self._reader is not None and self._reader.is_thinking

    def read(self, committed: str, tokens: int = 0) -> None:
        """Reads the committed text as it is now: it begins with what was read before.

        Args:
            tokens: in it.
        """
        was_thinking = self.is_thinking
        self._push(committed[self._read :])
        self._read = len(committed)
        if was_thinking or self.is_thinking:
            self.reasoning_tokens += tokens - self._tokens
        self._tokens = tokens

    def ahead(self, provisional: str = "") -> tuple[str, str]:
        """The reasoning and the text that follow if the answer ends with this text after what is committed."""
        ahead = deepcopy(self)
        ahead.reasoning = ahead.text = ""
        ahead._push(provisional)
        if ahead._reader is not None:
            ahead._take(ahead._reader.finish())
        return ahead.reasoning, ahead.text

    def _push(self, text: str) -> None:
        if self._reader is None:
            self.text += text
        else:
            self._take(self._reader.push(text))

    def _take(self, pieces: list[ReasoningPiece | TextPiece]) -> None:
        for piece in pieces:
            if isinstance(piece, ReasoningPiece):
                self.reasoning += piece.text
            else:
                self.text += piece.text
