"""The end of an answer on a terminal: committed text, then what may yet be taken back, then the status line. Pure.

State: in which column the committed text ends, and what stands behind it. Every method gives the characters to write
(text and cursor movements). Invariant: as long as what stands behind the committed text is on the screen, it is
redrawn in place; once it has scrolled out, it stays and a marked line says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from moa_shared.plain_text import without_controls
from prompt_toolkit.utils import get_cwidth

CSI = "\x1b["
DIM, NORMAL = f"{CSI}2m", f"{CSI}0m"
ERASE_BELOW = f"{CSI}J"
PLAIN_MARK = "[unverified:] "  # before provisional text where there are no styles
WITHDRAWN = "[the unverified text above is withdrawn; the answer goes on:]"


class Screen:
    """From the line on which an answer begins.

    Args:
        columns, rows: of the terminal, at least 1.
        styled: provisional text is dim; without styles a mark stands before it.
    """

    def __init__(self, columns: int, rows: int, *, styled: bool) -> None:
        self._columns, self._rows = columns, rows
        self._styled = styled
        self._column = 0  # where the committed text ends; `columns`: at the end of a full line, not yet in the next one
        self._last_cell = ""  # of the committed text
        self._loose = ""  # provisional text on the screen
        self._status = ""
        self._down = 0  # rows from the end of the committed text to the cursor

    def resize(self, columns: int, rows: int) -> str:
        """The terminal has another size: nothing is known of where things are, so that a new line begins."""
        if (columns, rows) == (self._columns, self._rows):
            return ""
        self._columns, self._rows = columns, rows
        drawn = f"\r{CSI}K" if self._status else "\r\n" if self._column or self._loose else ""
        self._status, self._column, self._last_cell = "", 0, ""
        self._down = self._rows if self._loose else 0  # out of reach
        return drawn

    def update(self, piece: str, provisional: str, status: str) -> str:
        """Shows `piece` behind the committed text, all of `provisional` behind it, and the status line.

        Args:
            piece: new committed text.
            provisional: in place of what was provisional before.
            status: one line; empty: none.
        """
        piece, loose = without_controls(piece), without_controls(provisional)
        if loose and not self._styled:
            loose = PLAIN_MARK + loose
        if not piece and loose == self._loose and status == self._status:
            return ""
        if self._down >= self._rows:
            return self._append(piece, loose, status)
        drawn = self._go_back() if self._loose or self._status else ""
        return drawn + self._write(piece) + self._draw(loose, status)

    def interject(self, text: str) -> str:
        """Lines of their own behind the committed text; the next update draws what is provisional below them."""
        drawn = self.update("", "", "") + ("\r\n" if self._column else "")
        self._column, self._last_cell = 0, ""
        return drawn + without_controls(text).replace("\n", "\r\n") + "\r\n"

    def finish(self) -> str:
        """The answer is over: the status line goes, and the cursor to a line of its own."""
        drawn = self.update("", self._loose if self._styled else self._loose.removeprefix(PLAIN_MARK), "")
        _, column, _ = self._flow(self._column, self._loose)
        self._column, self._loose, self._last_cell, self._down = 0, "", "", 0
        return drawn + ("\r\n" if column else "")

    # ------------------------------------------------------------ inside

    def _draw(self, loose: str, status: str) -> str:
        """What stands behind the committed text, from its end on."""
        self._loose = loose
        self._down, _, flowed = self._flow(self._column, loose)
        self._status = status if self._down + 1 < self._rows else ""  # else there is no room to come back from
        drawn = self._dim(flowed)
        if self._status:
            drawn += "\r\n" + self._dim(_fit(self._status, self._columns - 1))
            self._down += 1
        return drawn

    def _append(self, piece: str, loose: str, status: str) -> str:
        """What stood there has scrolled out: goes on behind it if it was right, else begins anew."""
        whole = piece + loose
        if whole.startswith(self._loose):
            _, column, _ = self._flow(self._column, self._loose)
            settled = piece[len(self._loose) :]
            _, column, drawn = self._flow(column, settled)
            _, _, rest = self._flow(column, whole[len(self._loose) + len(settled) :])
            self._write(piece)
            self._loose, self._status = loose, ""
            self._down, _, _ = self._flow(self._column, loose)
            return drawn + self._dim(rest)
        self._column, self._last_cell = 0, ""
        return f"\r\n{WITHDRAWN}\r\n" + self._write(piece) + self._draw(loose, status)

    def _go_back(self) -> str:
        """To the end of the committed text, with nothing behind it.

        Its last character is written again: a line that it fills is then full and no more, as before, and a mark of no
        width that had come to stand on it is gone.
        """
        column = self._column - get_cwidth(self._last_cell) if self._column else 0
        moves = (f"{CSI}{self._down}A" if self._down else "") + "\r" + (f"{CSI}{column}C" if column else "")
        return moves + ERASE_BELOW + (self._last_cell if self._column else "")

    def _write(self, piece: str) -> str:
        """Committed text, from the end of what there is."""
        before = self._last_cell if self._column else ""
        _, self._column, flowed = self._flow(self._column, piece)
        for cell in cells(before + piece[-64:]):
            self._last_cell = cell
        return flowed

    def _flow(self, column: int, text: str) -> tuple[int, int, str]:
        """How far down and in which column `text` ends that begins in `column`, and what to write for it.

        A wide character that does not fit into a line's last column is preceded by a space: terminals differ there.
        """
        rows = 0
        flowed = []
        for cell in cells(text):
            if cell == "\n":
                rows, column = rows + 1, 0
                flowed.append("\r\n")
                continue
            width = get_cwidth(cell)
            if column + width > self._columns:
                if column < self._columns:
                    flowed.append(" ")
                rows, column = rows + 1, 0
            column += width
            flowed.append(cell)
        return rows, column, "".join(flowed)

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{NORMAL}" if self._styled and text else text


def cells(text: str) -> Iterator[str]:
    """Characters, each with the marks of no width that belong to it."""
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
    """As much of a line as fits."""
    while get_cwidth(line) > columns:
        line = line[:-1]
    return line
