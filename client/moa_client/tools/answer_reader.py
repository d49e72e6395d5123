"""Reads an answer's text as it comes: its reasoning, its text, and the calls in it. Pure.

Chat and endpoint tell reasoning from the answer by this alone; the page's script has the same rules. White space around
reasoning is dropped, and before a call, where families write it differently.
A call is read when its closing mark has come, or with the answer's end where its form has none. Invariants: what comes
out depends on the text alone, not on its pieces; text that is no whole call comes out as it is; no character is looked
at more often because the answer is long.
"""

import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, islice

from moa_client.tools.formats import NO_CALLS, Gemma4, Harmony, Hermes, Llama, Mistral, Mistral11, QwenXml, ToolFormat
from moa_client.tools.thinking import Marks, ReasoningMarks
from moa_client.tools.tool import Tool

# The more special before the more general, whose marks they share.
FORMATS: tuple[ToolFormat, ...] = (Harmony(), Gemma4(), QwenXml(), Hermes(), Mistral11(), Mistral(), Llama())
DEFAULT = Hermes()  # what a model is told to write whose template knows no calls
TRIES = 8  # closing marks within a call's own texts, after which it is read with the answer's end
MOST_REFUSED = 32  # openings of no call, which all are read with the answer's end; what comes after them is text
LONGEST_END = 24  # characters: no mark that ends a call has more


def find_format(chat_template: str) -> ToolFormat:
    """The form in which a model with this chat template writes calls."""
    return next((each for each in FORMATS if all(sign in chat_template for sign in each.signs)), DEFAULT)


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call. `index`: of the call in the answer, from 0. `arguments`: a JSON object."""

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


def parted(pieces: Sequence[Piece]) -> tuple[str, str, list[CallPiece]]:
    """The reasoning, the text and the calls of some pieces."""
    reasoning = "".join([piece.text for piece in pieces if isinstance(piece, ReasoningPiece)])
    text = "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)])
    return reasoning, text, [piece for piece in pieces if isinstance(piece, CallPiece)]


class AnswerReader:
    """Reads one answer. State: what may become a mark, or the call that has not ended.

    Args:
        marks: of its reasoning; None: the model marks none. `is_open`: the prompt has opened it.
        form: of its calls; None: there are none. `tools`: that were offered.
        drops_others: marks that people are not shown are left out.
    """

    def __init__(
        self,
        marks: Marks | None = None,
        form: ToolFormat | None = None,
        tools: Sequence[Tool] = (),
        *,
        is_open: bool = False,
        drops_others: bool = False,
    ) -> None:
        self.is_thinking = is_open
        self._is_plain = marks is None and form is None
        self._marks = marks or Marks()
        self._others = self._marks.others if drops_others else ()
        self._form = form or NO_CALLS
        self._tools = {tool.name: tool for tool in tools}
        self._pieces: list[Piece] = []
        self._number = 0  # of the next call
        self._held = ""  # text that may begin a mark
        self._space = ""  # held until something follows it
        self._drops_space = is_open  # what comes next follows a mark of reasoning
        self._is_after_call = False
        self._has_text = False
        self._has_answer = False  # or reasoning, which has ended: an answer may tell of the marks
        self._opening = ""  # of the call that is being read; empty: text is
        self._markup: list[str] = []  # from the opening on
        self._has_begun = False  # something follows the opening
        self._tail = ""  # of it: as much as may begin a closing mark
        self._tried = 0  # characters of it, up to the newest closing mark
        self._tries = 0
        self._refused = 0  # openings

    def push(self, text: str) -> list[Piece]:
        """Reads more text; what has become certain."""
        return [TextPiece(text)] if text and self._is_plain else self._advance(text, is_last=False)

    def finish(self) -> list[Piece]:
        """Ends the text; the rest of it."""
        pieces = self._advance("", is_last=True)
        if self._space and not (self.is_thinking or self._drops_space or self._is_after_call):
            pieces.append(TextPiece(self._space))
        return joined(pieces)

    def _advance(self, text: str, *, is_last: bool) -> list[Piece]:
        text, self._held, self._pieces = self._held + text, "", []
        while text or (is_last and self._opening):
            read = self._read_call if self._opening else self._read_text
            text = read(text, is_last)
        return joined(self._pieces)

    @property
    def _expected(self) -> tuple[str, ...]:
        """The marks that may come next."""
        if self.is_thinking:
            return self._marks.closings
        openings = self._marks.openings if self._marks.repeated or not self._has_answer else ()
        first = () if self._has_text else self._form.first_openings
        return (*openings, *self._others, *self._form.openings, *first)

    def _read_text(self, text: str, is_last: bool) -> str:
        """Reads up to a mark, and takes it; the text from there on."""
        marks = self._expected
        begun = len(text) - (0 if is_last else held_back(text, marks))
        found = _search(marks).search(text)
        end = found.start() if found is not None and found.start() < begun else begun
        self._write(text[:end])
        if self._expected != marks:
            return text[end:]  # an answer has begun, which may tell of marks
        if found is None or end == begun:
            self._held = text[end:]
            return ""
        mark = found[0]
        if self.is_thinking or mark in (*self._marks.openings, *self._others):
            self._space, self._drops_space = "", True
            if self.is_thinking or mark not in self._others:
                self.is_thinking = not self.is_thinking
                self._has_answer = self._has_answer or not self.is_thinking
            return text[end + len(mark) :]
        self._opening, self._markup, self._has_begun, self._tail = mark, [], False, ""
        self._tries, self._tried = 0, len(mark)
        return text[end:]

    def _read_call(self, text: str, is_last: bool) -> str:
        """Reads up to the end of a call; the text from there on."""
        ends, begun = self._form.ends(self._opening), text if self._markup else text[len(self._opening) :]
        self._markup.append(text)
        if not self._has_begun and (first := begun.lstrip()[:1]):
            self._has_begun = True
            if self._form.follows and first not in self._form.follows:
                return self._refuse("".join(self._markup))
        window = self._tail + text
        self._tail = window[-LONGEST_END:]
        if not is_last and (self._tries >= TRIES or not ends.search(window)):
            return ""
        whole = "".join(self._markup)
        self._markup = [whole]
        places = (mark.end() for mark in islice(ends.finditer(whole, self._tried), TRIES - self._tries))
        for place in chain(places, [len(whole)] if is_last else []):
            self._tries, self._tried = self._tries + 1, place
            try:
                calls, end = self._form.parse(whole[:place], self._opening, self._tools)
            except (ValueError, RecursionError):
                continue
            for name, arguments in calls:
                self._pieces.append(CallPiece(self._number, name, arguments))
                self._number += 1
            self._opening, self._space, self._drops_space = "", "", False
            self._is_after_call = self._has_answer = True
            return whole[end:]
        if not is_last:
            return ""
        self._refused += 1
        if self._refused == MOST_REFUSED:
            self._form = NO_CALLS
        return self._refuse(whole)

    def _refuse(self, whole: str) -> str:
        opening, self._opening = self._opening, ""
        self._write(opening)
        return whole[len(opening) :]

    def _write(self, text: str) -> None:
        if sure := text.rstrip():
            piece = sure.lstrip() if self._drops_space else self._space + sure
            self._pieces.append(ReasoningPiece(piece) if self.is_thinking else TextPiece(piece))
            self._space, self._drops_space, self._is_after_call = "", False, False
            self._has_text = self._has_text or not self.is_thinking
            self._has_answer = self._has_answer or not self.is_thinking
        self._space += text[len(sure) :]


@lru_cache(maxsize=64)
def _search(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may begin a mark."""
    most = max((len(mark) - 1 for mark in marks), default=0)
    for length in range(min(most, len(text)), 0, -1):
        if any(len(mark) > length and mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


class AnswerSplit:
    """One answer, divided into its reasoning and its text.

    State: how far the committed text was read, and what came out.
    """

    def __init__(self, reader: AnswerReader | None = None) -> None:
        self.reasoning = ""  # committed, as the next two
        self.text = ""
        self.reasoning_tokens = 0  # with those that mark it, and those that were read together with its end
        self.tokens = 0  # read so far
        self._reader = reader or AnswerReader()
        self._read = 0  # characters

    @property
    def is_thinking(self) -> bool:
        """Whether the committed text ends within reasoning."""
        return self._reader.is_thinking

    def read(self, committed: str, tokens: int = 0) -> list[Piece]:
        """Reads the committed text as it is now, and its tokens: it begins with what was read before. What is new."""
        was_thinking = self.is_thinking
        pieces = self._reader.push(committed[self._read :])
        self._read = len(committed)
        reasoning, text, _ = parted(pieces)
        self.reasoning += reasoning
        whole, self.text = self.text, ""  # no other reference: Python appends without a copy
        whole += text
        self.text = whole
        if was_thinking or self.is_thinking or reasoning:
            self.reasoning_tokens += tokens - self.tokens
        self.tokens = tokens
        return pieces

    def finish(self, provisional: str = "") -> list[Piece]:
        """What follows if the answer ends with this text after what is committed; nothing is read after that."""
        return joined([*self._reader.push(provisional), *self._reader.finish()])

    def ahead(self, provisional: str = "") -> tuple[str, str]:
        """The reasoning and the text of that, where no calls are read; more may be read after that."""
        ahead = copy(self)
        ahead._reader = copy(self._reader)
        return parted(ahead.finish(provisional))[:2]


def split_by(marks: ReasoningMarks, effort: str | None) -> AnswerSplit:
    """An answer before its first character, for people; `effort`: that was asked of it."""
    return AnswerSplit(AnswerReader(marks, is_open=(effort or "") in marks.opened, drops_others=True))
