"""Text laid out in lines of words, cell by cell. Pure.

A word that does not fit moves to the next line, the space before it stays; a word longer than a line is broken by the
terminal, and so takes several rows of one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from prompt_toolkit.utils import get_cwidth

from moa_client.chat.display.markdown import Weight

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

    Args:
        weight: of text that is rendered.
        glyph: what is shown in its place, of the same or no width; None: itself.
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
