"""Reads an answer's text as it comes: calls are taken out of it, all else is passed on. Pure.

State: the text that may still become markup, or the call that is being read. Invariant: what comes out depends on the
text alone, not on its pieces; and nothing is lost: text that is no call comes out as it is, and what there is of a
call that is not whole is told with its end. White space before a call is dropped, as families write it differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.markers import MarkerSearch
from moa_client.tools.reading.pieces import CallBroken, Piece, TextPiece, joined
from moa_client.tools.reading.steps import Steps
from moa_client.tools.tool import Tool


class CallMarkup(ABC):
    """How calls are marked in text.

    Attributes:
        openings: markers that open nothing but calls.
        likely_openings: markers that open calls, and other things too.
        first_openings: the same, only where an answer begins.
        closing: what ends a call; empty: nothing does, and a call that cannot be read takes the rest of the answer.
    """

    openings: ClassVar[tuple[str, ...]] = ()
    likely_openings: ClassVar[tuple[str, ...]] = ()
    first_openings: ClassVar[tuple[str, ...]] = ()
    closing: ClassVar[str] = ""

    @abstractmethod
    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        """Reads what follows an opening, up to the end of its markup."""


class Reader:
    """Reads one answer.

    Args:
        tools: that were offered.
    """

    def __init__(self, markup: CallMarkup, tools: Sequence[Tool]) -> None:
        self._markup = markup
        self._calls = Calls(tools)
        self._search = MarkerSearch()
        self._space: list[str] = []  # before what is being read
        self._has_text = False
        self._is_after_call = False
        self._steps: Steps[None] | None = None
        self._raw: list[str] = []  # the characters of the markup that are not accounted for
        self._is_broken = False

    def push(self, text: str) -> list[Piece]:
        """Reads more text; what has become certain."""
        for char in text:
            self._read(char)
        return self._taken()

    def finish(self) -> list[Piece]:
        """Ends the text; the rest of it."""
        raw = "".join(self._raw)
        if self._steps is None:
            rest = self._search.drain()
            if rest or not self._is_after_call:
                self._calls.pieces.append(TextPiece(self._taken_space() + rest))
        elif self._is_open:
            self._break_off()
        elif not self._calls.only_markup:
            self._calls.pieces.append(TextPiece(self._taken_space() + raw))
        self._space.clear()
        self._steps = None
        self._raw.clear()
        return self._taken()

    @property
    def _is_open(self) -> bool:
        """Whether what is being read can only be a call."""
        call = self._calls.current
        if call is not None and call.has_started:
            return True
        return self._calls.is_certain and not self._calls.only_markup

    def _taken(self) -> list[Piece]:
        pieces = [piece for piece in self._calls.pieces if piece != TextPiece("")]
        self._calls.pieces.clear()
        return joined(pieces)

    def _read(self, char: str) -> None:
        if self._steps is None:
            self._search.add(char)
            self._read_text()
        elif self._is_broken:
            self._raw.append(char)
            self._end_broken()
        else:
            self._raw.append(char)
            self._read_markup(self._steps, char)

    def _read_text(self) -> None:
        while self._steps is None:
            markup = self._markup
            first = () if self._has_text else markup.first_openings
            openings = (*markup.openings, *markup.likely_openings, *first)
            found = self._search.take(openings)
            if not found:
                return
            if found in openings:
                self._open(found)
            else:
                self._write(found)

    def _open(self, opening: str) -> None:
        self._raw = list(opening)
        self._calls.is_certain = opening in self._markup.openings
        self._calls.only_markup = False
        self._steps = self._markup.read_calls(opening, self._calls)
        try:
            next(self._steps)
        except StopIteration:
            self._close()
        self._note_settled()

    def _read_markup(self, steps: Steps[None], char: str) -> None:
        try:
            steps.send(char)
        except StopIteration:
            self._close()
        except Mismatch:
            self._on_mismatch()
        self._note_settled()

    def _on_mismatch(self) -> None:
        call = self._calls.current
        if call is not None and call.has_started:
            self._is_broken = True
            self._end_broken()
            return
        wrong = self._raw.pop()
        text = "".join(self._raw)
        self._calls.current = None
        self._raw.clear()
        self._steps = None
        self._write(text)
        self._read(wrong)

    def _end_broken(self) -> None:
        closing = self._markup.closing
        if closing and "".join(self._raw[-len(closing) :]) == closing:
            self._break_off()
            self._close()

    def _break_off(self) -> None:
        call = self._calls.current
        index = self._calls.started if call is None else call.index
        self._calls.pieces.append(CallBroken(index, "".join(self._raw)))

    def _close(self) -> None:
        self._calls.current = None
        self._steps, self._is_broken = None, False
        self._space.clear()
        self._is_after_call = True
        self._raw.clear()

    def _note_settled(self) -> None:
        if self._calls.has_settled:
            self._calls.has_settled = False
            self._raw.clear()
            self._space.clear()

    def _write(self, text: str) -> None:
        sure = text.rstrip()
        if sure:
            self._calls.pieces.append(TextPiece(self._taken_space() + sure))
            self._has_text, self._is_after_call = True, False
        self._space.append(text[len(sure) :])

    def _taken_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space
