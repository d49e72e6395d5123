"""Reads an answer's text as it comes: its reasoning, then its text and calls. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from moa_client.tools.reading.pieces import Piece, TextPiece
from moa_client.tools.reading.reader import Reader
from moa_client.tools.thinking import ReasoningPiece, ThinkingReader


class AnswerReader:
    """A reader of reasoning before one of calls.

    Args:
        thinking: None: the model marks no reasoning.
        calls: None: there are none.
    """

    def __init__(self, thinking: ThinkingReader | None, calls: Reader | None) -> None:
        self._thinking = thinking
        self._calls = calls

    def push(self, text: str) -> list[ReasoningPiece | Piece]:
        """Reads more text; what has become certain."""
        if self._thinking is None:
            return self._read([TextPiece(text)])
        return self._read(self._thinking.push(text))

    def finish(self) -> list[ReasoningPiece | Piece]:
        """Ends the text; the rest of it."""
        rest = [] if self._thinking is None else self._read(self._thinking.finish())
        return rest if self._calls is None else [*rest, *self._calls.finish()]

    def _read(self, pieces: Iterable[ReasoningPiece | TextPiece]) -> list[ReasoningPiece | Piece]:
        read: list[ReasoningPiece | Piece] = []
        for piece in pieces:
            if isinstance(piece, ReasoningPiece) or self._calls is None:
                read.append(piece)
            else:
                read += self._calls.push(piece.text)
        return read
