"""Text laid out in lines of words, cell by cell, and how the characters of an answer in Markdown look. Pure.

A word that does not fit moves to the next line, the space before it stays; a word longer than a line is broken by the
terminal, and so takes several rows of one line. Each character of Markdown keeps its place: it is shown as it is, as
another one, or not at all, so that a screen can correct it. For the same reason this is no general parser, which would
not say which characters are marks: headings, bold, italics, code and bullets, each decided by its own line, and blocks
of code. A mark whose counterpart has not come yet is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag, auto
from typing import NamedTuple

from prompt_toolkit.utils import get_cwidth

BULLET = "\u2022"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6} +")
ITEM = re.compile(r"\s*([-*+]) +(?=\S)")
SPANS = re.compile(
    r"(?P<code>`+)(?!`)(?P<in_code>.+?)(?<!`)(?P=code)(?!`)"
    r"|(?P<bold>\*\*|(?<!\w)__)(?=\S)(?P<in_bold>.+?)(?<=\S)(?P=bold)(?!\w)"
    r"|(?P<italic>(?<![\w*])\*|(?<![\w_])_)(?=[^\s*_])(?P<in_italic>[^*_]*?[^\s*_]|[^\s*_])(?P=italic)(?!\w)"
)


class Weight(IntFlag):
    """What makes text stand out."""

    PLAIN = 0
    BOLD = 1
    ITALIC = 2
    CODE = 4


class Look(NamedTuple):
    """How one character looks. `shown`: in its place; None: itself."""

    weight: Weight = Weight.PLAIN
    shown: str | None = None


PLAIN = Look()
CODE = Look(Weight.CODE)


class Markdown:
    """The block in which text begins, as far as its end is known.

    State: the beginning of the line that is not complete, and whether it is in a block of code.
    """

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    def pass_by(self, text: str) -> None:
        """Takes in text that will not change any more."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._fence = _fence_after(self._fence, line)

    def go_back(self, text: str) -> None:
        self._line = self._line.removesuffix(text)

    def looks(self, text: str) -> list[Look]:
        looks: list[Look] = []
        fence, skipped = self._fence, len(self._line)
        for number, line in enumerate((self._line + text).split("\n")):
            if number:
                looks.append(PLAIN)  # the line break
            looks += _line_looks(line, fence)
            fence = _fence_after(fence, line)
        return looks[skipped:]


def _fence_after(fence: str, line: str) -> str:
    """The mark that opened the block of code in which the next line is; empty: it is in none."""
    found = FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found[1]
    return "" if line.strip() == found[1] and found[1].startswith(fence) else fence


def _line_looks(line: str, fence: str) -> list[Look]:
    if fence or FENCE.match(line):
        return [CODE] * len(line)
    looks = [PLAIN] * len(line)
    begin = 0
    if heading := HEADING.match(line):
        begin = heading.end()
        looks[:begin] = [Look(shown="")] * begin
        looks[begin:] = [Look(Weight.BOLD)] * (len(line) - begin)
    elif item := ITEM.match(line):
        begin = item.end()
        looks[item.start(1)] = Look(shown=BULLET)
    _mark_spans(line, begin, len(line), looks)
    return looks


def _mark_spans(line: str, begin: int, end: int, looks: list[Look]) -> None:
    for span in SPANS.finditer(line, begin, end):
        kind = span.lastgroup or ""
        weight = Weight[kind.removeprefix("in_").upper()]
        inner, last = span.span(kind)
        for at in range(span.start(), span.end()):
            is_mark = not inner <= at < last
            looks[at] = Look(looks[at].weight | weight, "" if is_mark else looks[at].shown)
        if weight is not Weight.CODE:
            _mark_spans(line, inner, last, looks)


PART = " | "  # between the parts of a status line
CUT = "…"


class Style(Enum):
    """How text looks."""

    PLAIN = auto()
    DIM = auto()  # no server has decided it
    UNSURE = auto()  # nor is it likely to be what one will decide
    MARKED = auto()  # the server has just corrected it
    LABEL = auto()  # plain, and not part of an answer


class Cell(NamedTuple):
    """A character with its marks of no width, or a line break.

    `weight`: of text that is rendered; `glyph`: what is shown in its place, of the same or no width; None: itself.
    """

    text: str
    style: Style
    weight: Weight = Weight.PLAIN
    glyph: str | None = None

    @property
    def shown(self) -> str:
        return self.text if self.glyph is None else self.glyph


class Placed(NamedTuple):
    """A cell in its place.

    Args:
        drawn: what to write for it; empty for a space at the end of a full line.
        line: counted from the line where the layout starts.
        width: of that line up to this cell, in columns.
        weight: of text that is rendered.
        shown: the character itself, or what is shown in its place.
    """

    text: str
    style: Style
    drawn: str
    line: int
    width: int
    weight: Weight
    shown: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where text ends that is not laid out again.

    Args:
        width: of its last line.
        last: its last character, with its marks, if the last line has one.
        joined: what follows continues a word that is already placed.
    """

    width: int = 0
    last: str = ""
    joined: bool = False


def lay_out(start: Cursor, cells: Iterable[Cell], columns: int) -> list[Placed]:
    """Places cells after `start`."""
    placed: list[Placed] = []
    line, width, joined = 0, start.width, start.joined
    for word in _words(cells):
        column = column_at(width, columns)
        text, style, weight, _ = word[0]
        if text == "\n":
            line, width = line + 1, 0
            placed.append(Placed(text, style, "\r\n", line, width, weight, text))
        elif text == " " and column == columns:
            placed.append(Placed(text, style, "", line, width, weight, text))
        else:
            size = sum(get_cwidth(cell.shown) for cell in word)
            lead = ""
            if not joined and column and column + size > columns:
                line, width, lead = line + 1, 0, "\r\n"
            for cell in word:
                width += get_cwidth(cell.shown)
                placed.append(Placed(cell.text, cell.style, lead + cell.shown, line, width, cell.weight, cell.shown))
                lead = ""
        joined = False
    return placed


def rows_after(start: Cursor, placed: Sequence[Placed], columns: int) -> list[int]:
    """The row where the text ends after each number of cells, from the first row of the line where it starts."""
    first, width, line = 0, start.width, 0  # `first`: row of this line
    rows = [wraps(width, columns)]
    for cell in placed:
        if cell.line > line:
            first, line = first + wraps(width, columns) + 1, cell.line
        width = cell.width
        rows.append(first + wraps(width, columns))
    return rows


def wraps(width: int, columns: int) -> int:
    """How many times a line of that width wraps at the edge."""
    return max(0, width - 1) // columns


def column_at(width: int, columns: int) -> int:
    """The column where a line of that width ends; `columns`: at the end of a full row, not yet in the next."""
    return width - wraps(width, columns) * columns


def last_break(text: str) -> int:
    """Where the last word of a text begins; its end if it ends with a break opportunity."""
    at = len(text)
    while at and not is_break(text[at - 1]):
        at -= 1
    return at


def is_break(character: str) -> bool:
    """Whether a line may be broken after a character."""
    return character in " \n" or get_cwidth(character) > 1


def cells(text: str) -> Iterator[str]:
    """Characters, each with its zero-width marks."""
    held = ""
    for character in text:
        if character == "\n":
            if held:
                yield held
            held = ""
            yield character
        elif held and get_cwidth(character) == 0:
            held += character
        else:
            if held:
                yield held
            held = character
    if held:
        yield held


def fit(line: str, columns: int) -> str:
    """As many parts of a status line as fit; of the first part, as many words as fit."""
    parts = line.split(PART)
    while len(parts) > 1 and get_cwidth(PART.join(parts)) > columns:
        parts.pop()
    if get_cwidth(shown := PART.join(parts)) <= columns:
        return shown
    words = shown.split(" ")
    while words and get_cwidth(" ".join(words) + CUT) > columns:
        words.pop()
    return " ".join(words) + CUT if words else ""


def _words(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Groups of cells that belong on one line; line breaks, spaces and wide characters are separate."""
    word: list[Cell] = []
    for cell in cells:
        if cell.text in ("\n", " ") or get_cwidth(cell.text) > 1:
            if word:
                yield word
            word = []
            yield [cell]
        else:
            word.append(cell)
    if word:
        yield word
