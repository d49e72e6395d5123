"""Reads an answer's text as it comes: its reasoning, its text, and the calls in it. Pure.

A call is read when its closing mark has come, or with the answer's end where its form has none. Invariants: what comes
out depends on the text alone, not on its pieces; text that is no whole call comes out as it is, but for white space
before a call, which families write differently; no character is looked at more often because the answer is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby

from moa_client.tools.formats.base import Found, ToolFormat
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.json_calls import Gemma3, Hermes, Llama, Mistral, Mistral11, SmolLM3
from moa_client.tools.formats.qwen_xml import QwenXml
from moa_client.tools.thinking import ReasoningPiece, TextPiece, ThinkingReader, held_back
from moa_client.tools.tool import Tool

# The more special before the more general, whose marks they share.
FORMATS: tuple[ToolFormat, ...] = (
    Harmony(),
    Gemma4(),
    SmolLM3(),
    QwenXml(),
    Hermes(),
    Mistral11(),
    Mistral(),
    Llama(),
    Gemma3(),
)
DEFAULT = Hermes()  # what a model is told to write whose template knows no calls


def find_format(chat_template: str) -> ToolFormat:
    """The form in which a model with this chat template writes calls."""
    return next((each for each in FORMATS if each.detect(chat_template)), DEFAULT)


TRIES = 8  # closing marks within a call's own texts, after which one is tried only where the call has doubled


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call.

    Args:
        index: of the call in the answer, from 0.
        arguments: a JSON object, as the model wrote it.
    """

    index: int
    name: str
    arguments: str


Piece = ReasoningPiece | TextPiece | CallPiece


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with adjacent pieces of text as one."""
    whole: list[Piece] = []
    for kind, same in groupby(pieces, key=type):
        if kind is CallPiece:
            whole += same
        elif text := "".join([piece.text for piece in same if not isinstance(piece, CallPiece)]):
            whole.append(ReasoningPiece(text) if kind is ReasoningPiece else TextPiece(text))
    return whole


class AnswerReader:
    """Reads one answer. State: what may become a mark, or the call that has not ended.

    Args:
        thinking: reads its reasoning first; None: the model marks none.
        form: of its calls; None: there are none. `tools`: that were offered.
    """

    def __init__(self, thinking: ThinkingReader | None, form: ToolFormat | None, tools: Sequence[Tool] = ()) -> None:
        self.is_cut = False  # the answer has ended within a call
        self._thinking = thinking
        self._form, self._has_calls = form or DEFAULT, form is not None
        self._tools = {tool.name: tool for tool in tools}
        self._pieces: list[Piece] = []
        self._number = 0  # of the next call
        self._held = ""  # text that may begin an opening
        self._space = ""  # before what comes next
        self._has_text = False
        self._is_after_call = False
        self._opening = ""  # of the call that is being read; empty: text is
        self._markup: list[str] = []  # from the opening on
        self._length = 0  # of it
        self._tail = ""  # of it: as much as may begin a closing mark
        self._tries = 0
        self._next_try = 0
        self._is_sure = False  # that what follows the opening may begin a call

    @property
    def is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.is_thinking

    def push(self, text: str) -> list[Piece]:
        """Reads more text; what has become certain."""
        self._split([TextPiece(text)] if self._thinking is None else self._thinking.push(text))
        return self._taken()

    def finish(self) -> list[Piece]:
        """Ends the text; the rest of it."""
        self._split([] if self._thinking is None else self._thinking.finish())
        while self._opening:
            opening, whole = self._opening, "".join(self._markup)
            found = self._found(whole)
            rest = self._refuse(whole) if found is None else self._close(whole, found)
            if found is not None and found.is_cut:
                self.is_cut = opening in self._form.openings
                self._write(rest)
            else:
                self._read(rest)
        if self._held or not self._is_after_call:
            self._pieces.append(TextPiece(self._space + self._held))
        self._space = self._held = ""
        return self._taken()

    def ahead(self, text: str) -> list[Piece]:
        """What would come out if the answer ended with this text; nothing of it is read again later."""
        other = copy(self)
        other._thinking, other._markup, other._pieces = copy(self._thinking), list(self._markup), []
        return [*other.push(text), *other.finish()]

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = joined(self._pieces), []
        return pieces

    def _split(self, pieces: Iterable[ReasoningPiece | TextPiece]) -> None:
        for piece in pieces:
            if isinstance(piece, ReasoningPiece) or not self._has_calls:
                self._pieces.append(piece)
            else:
                self._read(piece.text)

    def _read(self, text: str) -> None:
        while text:
            text = self._read_call(text) if self._opening else self._read_text(self._held + text)

    def _read_text(self, text: str) -> str:
        """Reads up to an opening; the text from there on."""
        openings, first = (*self._form.openings, *self._form.likely_openings), text.lstrip()
        self._held = ""
        if not self._has_text and first[:1] in self._form.first_openings:
            at, self._opening = len(text) - len(first), first[0]
        elif found := self._form.opening_search.search(text):
            at, self._opening = found.start(), found[0]
        else:
            at = len(text) - held_back(text, openings)
            self._held = text[at:]
        self._write(text[:at])
        if not self._opening:
            return ""
        self._markup, self._tail = [], ""
        self._length = self._tries = self._next_try = 0
        self._is_sure = False
        return text[at:]

    def _read_call(self, text: str) -> str:
        """Reads up to the end of a call; the text from there on."""
        ends, searched = self._form.ends(self._opening), self._length - len(self._tail)
        self._markup.append(text)
        self._length += len(text)
        window = self._tail + text
        self._tail = window[-self._form.longest_end :]
        if self._is_sure and not ends.search(window):
            return ""
        whole = "".join(self._markup)
        self._markup = [whole]
        if not self._may_begin(whole):
            return self._refuse(whole)
        for mark in ends.finditer(whole, max(searched, len(self._opening))):
            self._tail = whole[mark.end() :][-self._form.longest_end :]
            if self._tries >= TRIES and mark.end() < self._next_try:
                continue
            found = self._found(whole[: mark.end()])
            if found is None:
                return self._refuse(whole)
            if not found.is_cut:
                return self._close(whole, found)
            self._tries += 1
            self._next_try = 2 * mark.end()
        return ""

    def _may_begin(self, whole: str) -> bool:
        """Whether what follows the opening may begin a call."""
        starts, after = self._form.starts(self._opening, self._tools), whole[len(self._opening) :].lstrip()
        self._is_sure = len(after) >= max(map(len, starts), default=0)
        return not starts or any(after.startswith(start[: len(after)]) for start in starts)

    def _found(self, markup: str) -> Found | None:
        """The calls of some markup; None: it is no markup."""
        if not self._may_begin(markup):
            return None
        try:
            return self._form.parse(markup, self._opening, self._tools)
        except (ValueError, RecursionError):
            return None

    def _refuse(self, whole: str) -> str:
        opening, self._opening = self._opening, ""
        self._write(opening)
        return whole[len(opening) :]

    def _close(self, whole: str, found: Found) -> str:
        for name, arguments in found.calls:
            self._pieces.append(CallPiece(self._number, name, arguments))
            self._number += 1
        if found.end:
            self._space, self._is_after_call = "", True
        self._opening = ""
        return whole[found.end :]

    def _write(self, text: str) -> None:
        if sure := text.rstrip():
            self._pieces.append(TextPiece(self._space + sure))
            self._space, self._has_text, self._is_after_call = "", True, False
        self._space += text[len(sure) :]
