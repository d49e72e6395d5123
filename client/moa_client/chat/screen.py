"""The end of an answer on a terminal: committed text, then provisional text, then the status line. Pure.

State: where the settled text ends, and what is after it. Settled is the committed text up to its last word, which may
still grow and move to the next line. Every method returns the characters to write (text and cursor movements).
Invariant: while everything after the settled text is on the screen, it is redrawn in place; once it has scrolled out,
it stays and a marked line says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moa_shared.text.plain_text import without_controls
from prompt_toolkit.utils import get_cwidth

CSI = "\x1b["
DIM, NORMAL = f"{CSI}2m", f"{CSI}0m"
ERASE_BELOW = f"{CSI}J"
PLAIN_MARK = "[unverified:] "  # before provisional text on terminals without styles
WITHDRAWN = "[the unverified text above is withdrawn; the answer continues:]"
PART = " | "  # between the parts of a status line
CUT = "…"


@dataclass(slots=True)
class Flow:
    """Text laid out in lines of words.

    Args:
        widths: of the lines that end with one of our line breaks, and of the last line; a word wider than the
            terminal takes several rows of one such line.
        last: the cell at the end, if the last line has one.
        drawn: what to write for each cell.
    """

    widths: list[int]
    last: str = ""
    drawn: list[str] = field(default_factory=list)

    def rows(self, columns: int) -> int:
        """How many rows the end is below the beginning of the first line."""
        return len(self.widths) - 1 + sum(_rows(width, columns) for width in self.widths)


class Screen:
    """Draws an answer on the terminal, from the line on which it begins.

    Args:
        columns, rows: of the terminal, at least 1.
        styled: provisional text is dim; without styles it follows a mark.
        reflows: the terminal reflows its lines when its width changes, as nearly all do.
    """

    def __init__(self, columns: int, rows: int, *, styled: bool, reflows: bool = True) -> None:
        self._columns, self._rows = columns, rows
        self._styled, self._reflows = styled, reflows
        self._settled = Flow([0])  # its last line
        self._joined = False  # it ends inside a word that is longer than a line
        self._word = ""  # committed text after it, without a break opportunity
        self._loose = ""  # provisional text
        self._status = ""
        self._below = self._settled  # and what is after it
        self._out_of_reach = False
        self._stale = False

    def resize(self, columns: int, rows: int) -> str:
        """Adapts to a new terminal size; the next update redraws the provisional text."""
        if (columns, rows) == (self._columns, self._rows):
            return ""
        self._columns, self._rows = columns, rows
        if self._reflows:
            self._out_of_reach = self._out_of_reach or self._down >= rows
            self._stale = bool(self._status)
            return ""
        drawn = f"\r{CSI}K" if self._status else "\r\n" if self._end else ""
        self._status, self._word = "", ""
        self._settle(Flow([0]))
        self._out_of_reach = bool(self._loose)
        return drawn

    def update(self, piece: str, provisional: str, status: str) -> str:
        """Shows `piece` after the committed text, all of `provisional` after it, and the status line.

        Args:
            piece: new committed text.
            provisional: replaces the previous provisional text.
            status: one line; empty: none.
        """
        piece, loose = without_controls(piece), without_controls(provisional)
        if loose and not self._styled:
            loose = PLAIN_MARK + loose
        if not piece and not self._stale and loose == self._loose and status == self._status:
            return ""
        if self._out_of_reach:
            return self._append(piece, loose, status)
        drawn = self._go_back()
        return drawn + self._write(piece) + self._draw(loose, status)

    def interject(self, text: str) -> str:
        """Inserts separate lines after the committed text; the next update draws provisional text below them."""
        drawn = self.update("", "", "") + ("\r\n" if self._end else "")
        self._word = ""
        self._settle(Flow([0]))
        flow = self._flow(self._settled, without_controls(text))
        return drawn + "".join(flow.drawn) + "\r\n"

    def finish(self) -> str:
        """Ends the answer: removes the status line and moves the cursor to a new line."""
        drawn = self.update("", self._loose if self._styled else self._loose.removeprefix(PLAIN_MARK), "")
        drawn += "\r\n" if self._end else ""
        self._word = self._loose = ""
        self._settle(Flow([0]))
        return drawn

    # ------------------------------------------------------------ inside

    @property
    def _end(self) -> int:
        """Width of the last line shown."""
        return self._below.widths[-1]

    @property
    def _down(self) -> int:
        """Rows from the end of the settled text to the cursor."""
        return self._below.rows(self._columns) - self._settled.rows(self._columns)

    def _settle(self, flow: Flow, *, joined: bool = False) -> None:
        """Makes the end of `flow` the end of the settled text, with nothing after it."""
        self._settled = self._below = Flow(flow.widths[-1:], flow.last)
        self._joined, self._out_of_reach = joined, False

    def _draw(self, loose: str, status: str) -> str:
        """Draws what is after the settled text, starting at its end."""
        self._loose, self._stale = loose, False
        flow = self._below = self._flow(self._settled, self._word + loose, joined=self._joined)
        firm = len(list(cells(self._word)))
        drawn = "".join(flow.drawn[:firm]) + self._dim("".join(flow.drawn[firm:]))
        self._status = status if self._down + 1 < self._rows else ""  # otherwise the cursor could not come back
        if self._status:
            line = _fit(self._status, self._columns - 1)
            drawn += "\r\n" + self._dim(line)
            self._below = Flow([*flow.widths, get_cwidth(line)], line[-1:])
        self._out_of_reach = self._down >= self._rows
        return drawn

    def _append(self, piece: str, loose: str, status: str) -> str:
        """Continues after text that has scrolled out if it was right; otherwise starts again."""
        shown, whole = self._word + self._loose, self._word + piece + loose
        self._stale = False
        if not whole.startswith(shown):
            self._word = ""
            self._settle(Flow([0]))
            return f"\r\n{WITHDRAWN}\r\n" + self._write(piece) + self._draw(loose, status)
        committed = self._word + piece
        firm = self._flow(self._below, committed[len(shown) :])
        rest = self._flow(firm, whole[max(len(shown), len(committed)) :])
        self._below = Flow([*self._below.widths[:-1], *firm.widths[:-1], *rest.widths], rest.last)
        self._word, self._loose, self._status = committed, loose, ""
        if not loose:
            self._word = ""
            self._settle(rest, joined=_last_break(committed) < len(committed))
        return "".join(firm.drawn) + self._dim("".join(rest.drawn))

    def _go_back(self) -> str:
        """Moves to the end of the settled text and clears everything after it.

        Its last character is written again: a line that it fills is then exactly full, as before, and a zero-width mark
        that had been combined with it is gone.
        """
        if not self._word and not self._loose and not self._status:
            return ""
        width, last = self._settled.widths[-1], self._settled.last
        column = _column(width, self._columns) - get_cwidth(last)
        moves = (f"{CSI}{self._down}A" if self._down else "") + "\r" + (f"{CSI}{column}C" if column > 0 else "")
        return moves + ERASE_BELOW + last

    def _write(self, piece: str) -> str:
        """Writes committed text up to its last word, from the end of the settled text."""
        text = self._word + piece
        cut = _last_break(text)
        is_long = get_cwidth(text[cut:]) >= self._columns
        if is_long:
            cut = len(text)
        flow = self._flow(self._settled, text[:cut], joined=self._joined)
        self._word = text[cut:]
        self._settle(flow, joined=is_long or (self._joined and not cut))
        return "".join(flow.drawn)

    def _flow(self, before: Flow, text: str, *, joined: bool = False) -> Flow:
        """Lays out text that begins where `before` ends.

        A word that does not fit moves to the next line, the space before it stays; a word longer than a line is broken
        by the terminal.

        Args:
            joined: the text continues a word that is already placed.
        """
        flow = Flow([before.widths[-1]], before.last)
        for word in _words(text):
            column = _column(flow.widths[-1], self._columns)
            if word[0] == "\n":
                flow.widths.append(0)
                flow.drawn.append("\r\n")
                flow.last = ""
            elif word[0] == " " and column == self._columns:
                flow.drawn.append("")
            else:
                breaks = not joined and column and column + sum(map(get_cwidth, word)) > self._columns
                if breaks:
                    flow.widths.append(0)
                flow.widths[-1] += sum(map(get_cwidth, word))
                flow.drawn += ["\r\n" + word[0] if breaks else word[0], *word[1:]]
                flow.last = word[-1] if get_cwidth(word[-1]) else flow.last + word[-1]
            joined = False
        return flow

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{NORMAL}" if self._styled and text else text


def _rows(width: int, columns: int) -> int:
    """How many times a line of that width wraps at the edge."""
    return max(0, width - 1) // columns


def _column(width: int, columns: int) -> int:
    """The column where a line of that width ends; `columns`: at the end of a full row, not yet in the next."""
    return width - _rows(width, columns) * columns


def _words(text: str) -> Iterator[list[str]]:
    """Groups of cells that belong on one line; line breaks, spaces and wide characters are separate."""
    word: list[str] = []
    for cell in cells(text):
        if cell in ("\n", " ") or get_cwidth(cell) > 1:
            if word:
                yield word
            word = []
            yield [cell]
        else:
            word.append(cell)
    if word:
        yield word


def _last_break(text: str) -> int:
    """Where the last word of a text begins; its end if it ends with a break opportunity."""
    at = len(text)
    while at and text[at - 1] not in " \n" and get_cwidth(text[at - 1]) <= 1:
        at -= 1
    return at


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


def _fit(line: str, columns: int) -> str:
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
