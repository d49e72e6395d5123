"""The end of a chat on a terminal: what may still change of it, drawn in place. Pure.

State: where the text ends that never changes, the blocks after it, what is drawn of them, and how many rows above the
cursor are certainly still on the screen. Every method that draws returns the characters to write (text and cursor
movements). Invariant: whatever is drawn after `_start` can be drawn again; what has scrolled out stays as it is, and a
sentence says where it was wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moa_shared.text.plain_text import without_controls
from prompt_toolkit.utils import get_cwidth

from moa_client.chat.display import layout
from moa_client.chat.display.answer_block import AnswerBlock
from moa_client.chat.display.word_wrap import wrap_words

CSI = "\x1b["
NORMAL = f"{CSI}0m"
ERASE_BELOW = f"{CSI}J"
STYLES = {layout.Style.DIM: "2", layout.Style.UNSURE: "2;3", layout.Style.MARKED: "4"}
WEIGHTS = {layout.Weight.BOLD: "1", layout.Weight.ITALIC: "3", layout.Weight.CODE: "36"}
SAID_AGAIN = "(The server corrects the text above, which has scrolled out of reach. From the line that changes:)"
LINE_BREAK = layout.Cell("\n", layout.Style.LABEL)


class Screen:
    """Draws answers and remarks on a terminal, from the line on which the first of them begins.

    Args:
        columns, rows: of the terminal, at least 1.
        styled: provisional text is dim and a correction underlined; without styles they follow labels.
        reflows: the terminal reflows its lines when its width changes, as nearly all do.
    """

    def __init__(self, columns: int, rows: int, *, styled: bool, reflows: bool = True) -> None:
        self._columns, self._rows = columns, rows
        self._styled, self._reflows = styled, reflows
        self._start = layout.Cursor()
        self._blocks: list[AnswerBlock] = []
        self._live: AnswerBlock | None = None
        self._shown: list[layout.Placed] = []
        self._footer = 0  # how many cells of what is shown are below the text
        self._above = 0
        self.renders = False  # Markdown, of answers that begin from now on
        self.descended = 0  # rows that the cursor has moved down, in all

    @property
    def due(self) -> float | None:
        """When to paint again if nothing happens, in seconds; None: no need."""
        return min((block.due for block in self._blocks if block.due is not None), default=None)

    def begin(self) -> AnswerBlock:
        """An answer that is written now; the cursor stays at its end until `end`."""
        self._live = AnswerBlock(styled=self._styled, renders=self.renders and self._styled)
        self._live.is_live = True
        self._blocks.append(self._live)
        return self._live

    def end(self, *, is_verified: bool) -> None:
        """The answer is written; one that is not verified may change later."""
        if self._live is None:
            return
        self._live.is_live = False
        if is_verified:
            self._live.close()
        self._live = None

    def say(self, text: str, now: float = 0.0, marked: str = "") -> None:
        """A remark, above the answer that is written now if there is one.

        `text`: not empty; `marked`: follows it on its own lines, as a correction.
        """
        remark = AnswerBlock(wrap_words(without_controls(text), self._columns), styled=self._styled)
        if marked:
            remark.mark(now, "\n" + marked)
        at = len(self._blocks) if self._live is None else self._blocks.index(self._live)
        self._blocks.insert(at, remark)

    def adopt(self, line: str) -> None:
        """Takes over a line that something else has written where the cursor was, and ended."""
        if not self._blocks:
            return
        if "\n" in line or get_cwidth(line) >= self._columns:
            self.cut_off()
            return
        added = AnswerBlock(line, styled=self._styled)
        first = self._shown[-1].line if self._shown else 0
        placed = layout.lay_out(layout.Cursor(), added.cells(), self._columns)
        self._blocks.append(added)
        self._place([*self._shown, *(cell._replace(line=first + cell.line) for cell in placed)], len(self._shown))
        self._fold()

    def paint(self, now: float, footer: Sequence[str] = ()) -> str:
        """Draws what has changed.

        `footer`: lines below the answer that is written now, as many as there is room for; the last one is fitted.
        """
        for block in self._blocks:
            block.expire(now)
        drawn = "".join(self._draw_again(block) for block in [*self._blocks] if block.contradicts)
        text = [cell for block in self._blocks for cell in block.cells()]
        below = [*self._below(footer)] if self._live is not None else []
        drawn += self._draw(layout.lay_out(self._start, [*text, *below], self._columns))
        self._footer = len(below)
        self._fold()
        return drawn

    def resize(self, columns: int, rows: int) -> str:
        """Adapts to a new terminal size; the next `paint` lays out again what can be."""
        if (columns, rows) == (self._columns, self._rows):
            return ""
        narrows, drawn = columns != self._columns, ""
        self._columns, self._rows = columns, rows
        if narrows and not self._reflows:
            end = self._shown[-1].width if self._shown else self._start.width
            drawn = f"\r{CSI}K" if self._footer else "\r\n" if end else ""
            self.cut_off()
            return drawn
        placed = layout.rows_after(self._start, self._shown, columns)
        self._above = min(placed[-1] - placed[0], rows - 1)
        self._fold()
        return drawn

    def leave_room(self, rows: int) -> None:
        """Called when so many rows were needed for something else below the cursor."""
        room = max(0, self._rows - max(1, rows))
        if room < self._above:
            self._above = room
            self._fold()

    def cut_off(self) -> None:
        """Gives up everything drawn: the cursor is on a new line, and it is not known where the text is."""
        for block in self._blocks:
            block.cut_off()
        self._blocks = [block for block in self._blocks if block.is_open]
        self._start, self._shown, self._footer, self._above = layout.Cursor(), [], 0, 0

    def _below(self, footer: Sequence[str]) -> Iterator[layout.Cell]:
        *notes, status = footer or [""]
        lines = [line for note in notes for line in wrap_words(note, self._columns - 1).split("\n")]
        if status and self._rows > 1:
            lines = [*lines[: self._rows - 2], layout.fit(status, self._columns - 1)]
        for line in lines:
            yield LINE_BREAK
            yield from (layout.Cell(cell, layout.Style.DIM) for cell in layout.cells(line))

    def _draw(self, placed: list[layout.Placed]) -> str:
        """Goes back to the first cell that differs, and draws everything from there."""
        old = self._shown
        same = 0
        for before, after in zip(old, placed, strict=False):
            if before != after:
                break
            same += 1
        moves, again = "", ""
        if same < len(old):
            moves, again, same = self._go_back(same)
        self._place(placed, same)
        return moves + again + self._written(placed[same:])

    def _go_back(self, index: int) -> tuple[str, str, int]:
        """Moves to a cell and clears everything from there: the movements, what to write again, and the cell reached.

        The character before is written again: a line that it fills is then exactly full, as before, and a zero-width
        mark that had been combined with it is gone.
        """
        old = self._shown
        while index and (cell := old[index - 1]).text != "\n" and not (cell.drawn and get_cwidth(cell.shown)):
            index -= 1
        rows = layout.rows_after(self._start, old, self._columns)
        before, width = (old[index - 1], old[index - 1].width) if index else (None, self._start.width)
        last = self._start.last if before is None else before.shown.strip("\n")
        column = layout.column_at(width, self._columns) - get_cwidth(last)
        up = rows[-1] - rows[index]
        self._above -= up
        self.descended -= up
        self._shown = old[:index]
        moves = (f"{CSI}{up}A" if up else "") + "\r" + (f"{CSI}{column}C" if column > 0 else "") + ERASE_BELOW
        return moves, last if before is None else self._written([before._replace(drawn=last)]), index

    def _place(self, placed: list[layout.Placed], drawn: int) -> None:
        rows = layout.rows_after(self._start, placed, self._columns)
        down = rows[-1] - rows[drawn]
        self._above = min(self._above + down, self._rows - 1)
        self.descended += down
        self._shown = placed

    def _written(self, placed: Iterable[layout.Placed]) -> str:
        drawn, style, run = "", "", ""
        for cell in [*placed, None]:
            wanted = _codes(cell) if cell is not None and self._styled else ""
            if run and (cell is None or wanted != style):
                drawn += f"{CSI}{style}m{run}{NORMAL}" if style else run
                run = ""
            if cell is not None:
                style, run = wanted, run + cell.drawn
        return drawn

    def _draw_again(self, block: AnswerBlock) -> str:
        """Begins a block again below, because it is wrong where it cannot be changed any more."""
        old = self._shown[: len(self._shown) - self._footer]
        drawn = self._draw(old)
        width = old[-1].width if old else self._start.width
        if width:
            drawn += "\r\n"
            self.descended += 1
        self._footer = 0
        for other in self._blocks:
            if other is not block:
                other.cut_off()
        self._blocks = [other for other in self._blocks if other.is_open or other is block]
        self._start, self._shown, self._above = layout.Cursor(), [], 0
        block.draw_again(self._columns)
        self._blocks.insert(self._blocks.index(block), AnswerBlock(SAID_AGAIN, styled=self._styled))
        return drawn

    def _fold(self) -> None:
        """Forgets what never changes, and what can no longer be reached."""
        rows = layout.rows_after(self._start, self._shown, self._columns)
        lost = next(index for index, row in enumerate(rows) if rows[-1] - row <= self._above)
        count = min(max(lost, self._firm_cells()), len(self._shown) - self._footer)
        if not count:
            return
        owners = (block for block in self._blocks for _ in [*block.cells()])
        for cell, owner in zip(self._shown[:count], [*owners], strict=False):
            for earlier in self._blocks[: self._blocks.index(owner)]:
                earlier.cut_off()  # what follows it cannot be moved any more
            owner.drop(cell)
        self._start = _end_after(self._start, self._shown[:count])
        line = self._shown[count - 1].line
        self._shown = [cell._replace(line=cell.line - line) for cell in self._shown[count:]]
        self._blocks = [block for block in self._blocks if block.is_open or any(True for _ in block.cells())]

    def _firm_cells(self) -> int:
        """How many cells will neither change nor move."""
        count = 0
        for block in self._blocks:
            firm = block.firm_cells(self._columns)
            count += firm
            if block.is_open or firm < sum(1 for _ in block.cells()):
                break
        return count


def _end_after(start: layout.Cursor, placed: Sequence[layout.Placed]) -> layout.Cursor:
    last, joined = start.last, start.joined
    for cell in placed:
        joined = not layout.is_break(cell.text[0])
        if cell.text == "\n":
            last = ""
        elif cell.drawn:
            last = cell.shown if get_cwidth(cell.shown) else last + cell.shown
    return layout.Cursor(placed[-1].width, last, joined)


def _codes(cell: layout.Placed) -> str:
    """What turns the cell's style on; empty: nothing needs to."""
    codes = [STYLES[cell.style]] if cell.style in STYLES else []
    return ";".join([*codes, *(code for weight, code in WEIGHTS.items() if weight in cell.weight)])
