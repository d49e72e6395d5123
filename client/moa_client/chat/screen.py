"""The end of a chat on a terminal, row by row: what may still change of it is drawn again in its place. Pure.

State: the blocks (answers and remarks) that may still change, the rows that are drawn of them, and how many rows above
the cursor are certainly still on the screen. What has left it is frozen: it stays as it is, and a sentence says where
it was wrong. Methods that draw return the characters to write; clock readings are arguments, in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from moa_shared.plain_text import without_controls
from prompt_toolkit.utils import get_cwidth
from wcwidth import wrap

from moa_client.conversation.answer_text import Corrections, common

MARKED_S = 1.5  # of a correction: long enough to be seen, short enough not to be in the way
CSI = "\x1b["
# No server has decided it; nor is it likely to be what one will decide; one has just corrected it.
DIM, UNSURE, MARKED = "2", "2;3", "4"
SAID_AGAIN = "(The server corrects the text above, which has scrolled out of reach. From the line that changes:)"
COLUMN = re.compile(r"\S.*?\s{2,}(?=\S)")  # the text before the second column of a table
PART = " | "  # between the parts of a status line
CUT = "…"


class Row(NamedTuple):
    """One row of the screen.

    Args:
        block: whose it is; None: it is below all text.
        begin, end: of it, in the block's text.
        shown: without styles.
        drawn: what is written for it; None: the terminal has laid it out by itself.
        is_joined: the terminal begins it, since a word is longer than the row before.
    """

    block: Block | None = None
    begin: int = 0
    end: int = 0
    shown: str = ""
    drawn: str | None = ""
    is_joined: bool = False


class Block:
    """An answer, or a remark, on rows of its own.

    State: its text, committed and provisional; what is drawn of it, and what of that is out of reach; what is marked as
    corrected, and until when.
    """

    def __init__(self, text: str = "") -> None:
        self.is_open = not text  # more may come, or other text
        self.is_live = False  # it is written now: the cursor stays at its end
        self.is_fixed = False  # its end is frozen: nothing can be appended to it in its place
        self.due: float | None = None  # when the mark of a correction goes
        self.drawn = self.frozen = ""
        self.text = self._committed = text
        self._taken = len(text)  # characters of the answer's committed text
        self._likely = 0  # of its provisional text
        self._is_verified = False
        self._corrections = Corrections()
        self._marks: Sequence[tuple[int, int]] = ()

    def mark(self, now: float, text: str) -> None:
        self._marks, self.due = ((len(self.text), len(self.text) + len(text)),), now + MARKED_S
        self.text = self._committed = self.text + text

    def update(self, now: float, committed: str, provisional: str, likely: int | None = None) -> None:
        """Shows an answer as it is now.

        `committed`: begins with all that was committed before. `provisional`: replaces the provisional text; `likely`:
        its characters that are likely to be right, None: all.
        """
        piece, loose = without_controls(committed[self._taken :]), without_controls(provisional)
        self._committed, self._taken = self._committed + piece, len(committed)
        self.text = self._committed + loose
        self._likely = len(without_controls(provisional[:likely]))
        if self._corrections.update(piece, loose):
            self._marks, self.due = self._corrections.stretches, now + MARKED_S

    def takes(self, committed: str, provisional: str) -> bool:
        """Whether `update` can show that in its place."""
        return not self.is_fixed and self._after(committed, provisional).startswith(self.frozen)

    def is_same(self, committed: str, provisional: str) -> bool:
        """Whether that is the text that it shows, although its style may differ."""
        return self._after(committed, provisional) == self.text

    def _after(self, committed: str, provisional: str) -> str:
        return self._committed + without_controls(committed[self._taken :] + provisional)

    def close(self, *, is_verified: bool = False) -> None:
        """Called when nothing will change any more, apart from the mark. `is_verified`: it is what a server says."""
        self.is_open, self._is_verified = False, is_verified

    @property
    def contradicts(self) -> bool:
        """Whether the text differs where it cannot be changed any more; what is only missing may still come."""
        if self.text.startswith(self.frozen):
            return False
        return self._is_verified or not self.frozen.startswith(self.text)

    def expire(self, now: float) -> None:
        if self.due is not None and now >= self.due:
            self._marks, self.due = (), None

    def rows(self, columns: int) -> list[Row]:
        """Those of all that may still change."""
        rows, before, looks = list[Row](), len(self.frozen), [*self._looks()]
        rest = "" if self.is_fixed else self.text[before:]
        for first, last, is_joined in lay_out(rest, columns):
            shown, begin = rest[first:last].removesuffix("\n"), before + first
            if get_cwidth(shown) > columns:
                shown = shown.rstrip(" ")
            rows.append(Row(self, begin, before + last, shown, _styled(shown, begin, looks), is_joined))
        return rows if self.is_live or rows[-1].begin < rows[-1].end else rows[:-1]

    def _looks(self) -> Iterator[tuple[int, int, str]]:
        """Stretches of the text, and the codes of their style."""
        at, decided = 0, len(self._committed)
        for begin, end in self._marks:
            yield at, begin, ""
            yield begin, end, MARKED
            at = end
        yield at, decided, ""
        yield decided, decided + self._likely, DIM
        yield decided + self._likely, len(self.text), UNSURE

    def firm_rows(self, rows: Sequence[Row]) -> int:
        """How many of its rows, in a whole line each, will neither change nor move."""
        if not self.is_open and not self._marks:
            return len(rows)
        firm = min([len(self._committed), *(begin for begin, _ in self._marks)])
        count = 0
        for number, (row, after) in enumerate(pairwise(rows), 1):
            if (row if self.drawn[row.end - 1] == "\n" else after).end > firm:
                break
            count = count if after.is_joined else number
        return count

    def freeze(self, row: Row) -> None:
        """Forgets a row, the first one, which will not be drawn again."""
        self.frozen = self.drawn[: row.end]
        self.is_fixed = not self.is_live and row.end == len(self.drawn)

    def cut_off(self) -> None:
        """Called when other output has followed, or the place of the text is no longer known."""
        self.frozen, self.is_fixed = self.drawn, bool(self.drawn) and not self.is_live

    def begin_again(self, columns: int) -> None:
        """Makes the line in which the text differs part of what is drawn."""
        same = common(self.frozen, self.text)
        begin = self.text.rfind("\n", 0, same) + 1
        if get_cwidth(self.text[begin:same]) >= columns:
            begin = self.text.find(" ", same - columns // 2, same) + 1 or same
        self.frozen, self.is_fixed = self.text[:begin], False


class Screen:
    """Draws answers and remarks on a terminal, from the line on which the first of them begins.

    `columns`, `rows`: of the terminal, at least 1. `reflows`: the terminal reflows its lines when its width changes, as
    nearly all do.
    """

    def __init__(self, columns: int, rows: int, *, reflows: bool = True) -> None:
        self._columns, self._lines = columns, rows
        self._reflows = reflows
        self._blocks: list[Block] = []
        self._live: Block | None = None
        self._rows = [Row()]  # the cursor is at the end of the last one
        self._above = 0
        self.descended = 0  # rows that the cursor has moved down, in all

    @property
    def due(self) -> float | None:
        """When to paint again if nothing happens, in seconds; None: no need."""
        return min((block.due for block in self._blocks if block.due is not None), default=None)

    def begin(self) -> Block:
        """An answer that is written now; the cursor stays at its end until `end`."""
        self._live = Block()
        self._live.is_live = True
        self._blocks.append(self._live)
        return self._live

    def end(self, *, is_verified: bool) -> None:
        """The answer is written; one that is not verified may change later."""
        if self._live is not None:
            self._live.is_live = False
            if is_verified:
                self._live.close(is_verified=True)
        self._live = None

    def say(self, text: str, now: float = 0.0, marked: str = "") -> None:
        """A remark, above the answer that is written now if there is one.

        `text`: not empty; `marked`: follows it on its own lines, as a correction.
        """
        remark = Block(wrap_words(without_controls(text), self._columns))
        if marked:
            remark.mark(now, "\n" + without_controls(marked))
        at = len(self._blocks) if self._live is None else self._blocks.index(self._live)
        self._blocks.insert(at, remark)

    def adopt(self, line: str) -> None:
        """Takes over a line that something else has written where the cursor was, and ended."""
        if not self._blocks:
            return
        if "\n" in line or get_cwidth(line) >= self._columns:
            self.cut_off()
            return
        added = Block(line)
        added.drawn = line
        self._blocks.append(added)
        self._rows[-1:] = [Row(added, 0, len(line), line, line), Row()]
        self._above = min(self._above + 1, self._lines - 1)
        self.descended += 1
        self._freeze()

    def paint(self, now: float, footer: Sequence[str] = ()) -> str:
        """Draws what has changed.

        `footer`: lines below the answer that is written now, as many as there is room for; the last one is fitted.
        """
        for block in self._blocks:
            block.expire(now)
        drawn = "".join(self._begin_again(block) for block in [*self._blocks] if block.contradicts)
        text = [row for block in self._blocks for row in block.rows(self._columns)]
        drawn += self._draw([*text, *(self._below(footer) if self._live is not None else [Row()])])
        for block in self._blocks:
            block.drawn = block.text
        self._freeze()
        self._blocks = [block for block in self._blocks if block.is_open or (not block.is_fixed and block.text)]
        return drawn

    def resize(self, columns: int, lines: int) -> str:
        """Adapts to a new terminal size; the next `paint` lays out again what can be."""
        if (columns, lines) == (self._columns, self._lines):
            return ""
        if columns != self._columns and not self._reflows:
            drawn = self._leave_text()
            self.cut_off()
        else:
            self._rows, drawn = self._reflowed(columns), ""
            self._above = min(len(self._rows), lines) - 1
        self._columns, self._lines = columns, lines
        self._freeze()
        return drawn

    def leave_room(self, rows: int) -> None:
        """Called when so many rows were needed for something else below the cursor."""
        room = max(0, self._lines - max(1, rows))
        if room < self._above:
            self._above = room
            self._freeze()

    def cut_off(self) -> None:
        """Gives up everything drawn: the cursor is on a new line, and it is not known where the text is."""
        for block in self._blocks:
            block.cut_off()
        self._blocks = [block for block in self._blocks if block.is_open or not block.is_fixed]
        self._rows, self._above = [Row()], 0

    def _below(self, footer: Sequence[str]) -> Iterator[Row]:
        *notes, status = footer or [""]
        lines = [line for note in notes for line in wrap_words(note, self._columns - 1).split("\n")]
        if status and self._lines > 1:
            lines = [*lines[: self._lines - 2], fit(status, self._columns - 1)]
        return (Row(shown=line, drawn=_styled(line, 0, [(0, len(line), DIM)])) for line in lines)

    def _draw(self, rows: Sequence[Row]) -> str:
        """Goes back to the first row that differs, and draws everything from there."""
        old = self._rows
        pairs = zip(old, rows, strict=False)
        differs = (at for at, (one, other) in enumerate(pairs) if one[-2:] != other[-2:])  # drawn, and how it begins
        same = next(differs, min(len(old), len(rows)))
        if same == len(rows) < len(old):
            same -= 1
        start = min(same, len(old) - 1)
        up, down = len(old) - 1 - start, len(rows) - 1 - start
        drawn = _back(up) if same == start else ""
        for number, row in enumerate(rows[same:], same):
            drawn += ("" if number == start or row.is_joined else "\r\n") + (row.drawn or "")
        self._above = min(self._above - up + down, self._lines - 1)
        self.descended += down - up
        self._rows = [*rows]
        return drawn

    def _begin_again(self, block: Block) -> str:
        """Draws a block again below, because it is wrong where it cannot be changed any more."""
        drawn = self._leave_text()
        self.cut_off()
        block.begin_again(self._columns)
        if block not in self._blocks:
            self._blocks.append(block)
        self._blocks.insert(self._blocks.index(block), Block(SAID_AGAIN))
        return drawn

    def _leave_text(self) -> str:
        """Moves to a new line after all text, and clears what is below it."""
        below = sum(row.block is None for row in self._rows)
        if below:
            self.descended -= below - 1
            return _back(below - 1)
        if not self._rows[-1].shown:
            return ""
        self.descended += 1
        return "\r\n"

    def _reflowed(self, columns: int) -> list[Row]:
        """The rows after the terminal has laid its lines out again."""
        rows, line = list[Row](), list[Row]()
        for row, after in zip_longest(self._rows, self._rows[1:]):
            line.append(row)
            if after is not None and after.is_joined:
                continue
            text, block, at = "".join(each.shown for each in line), row.block, line[0].begin
            pieces = lay_out(text, columns, at_words=False)
            if len(pieces) > 1 or len(line) > 1:
                line = [Row(block, at + a, at + b, text[a:b], None, is_joined) for a, b, is_joined in pieces]
                line[-1] = line[-1]._replace(end=row.end)
            rows += line
            line = []
        return rows

    def _freeze(self) -> None:
        """Forgets the rows that never change, and those out of reach."""
        firm = 0
        for block in self._blocks:
            mine = [row for row in self._rows if row.block is block]
            count = block.firm_rows(mine)
            firm += count
            if block.is_open or count < len(mine):
                break
        text = sum(row.block is not None for row in self._rows)
        count = min(max(firm, len(self._rows) - 1 - self._above), text, len(self._rows) - 1)
        for row in self._rows[:count]:
            if row.block is not None:
                row.block.freeze(row)
        del self._rows[:count]


def lay_out(text: str, columns: int, *, at_words: bool = True) -> list[tuple[int, int, bool]]:
    """Where the rows of a text begin and end, and whether the terminal begins a row by itself, within a word.

    A word that does not fit moves to the next row, the space before it stays. `at_words`: otherwise a terminal lays a
    line out, which breaks it wherever it must.
    """
    rows, begin, width, is_joined = list[tuple[int, int, bool]](), 0, 0, False
    place = before = 0  # after the last word that fits, and the width there
    for at, character in enumerate(text):
        if character == "\n":
            rows.append((begin, at + 1, is_joined))
            begin = place = at + 1
            width = before = 0
            is_joined = False
            continue
        size = get_cwidth(character)
        if size > 1 and at_words:
            place, before = at, width
        if size and width + size > columns and not (character == " " and at_words):
            is_broken = place <= begin
            end = at if is_broken else place
            rows.append((begin, end, is_joined))
            begin, width, is_joined = end, 0 if is_broken else width - before, is_broken
            place, before = begin, 0
        width = min(width + size, columns)
        if (character == " " or size > 1) and at_words:
            place, before = at + 1, width
    return [*rows, (begin, len(text), is_joined)]


def _back(rows: int) -> str:
    """Moves to the beginning of a row above the cursor, and clears what is there and below."""
    return "\r" + (f"{CSI}{rows}A" if rows else "") + f"{CSI}J"


def _styled(text: str, begin: int, looks: Sequence[tuple[int, int, str]]) -> str:
    """A text with the codes of its styles. `begin`: where it begins in what the looks are of."""
    drawn = ""
    for first, last, code in looks:
        if part := text[max(0, first - begin) : max(0, last - begin)]:
            drawn += f"{CSI}{code}m{part}{CSI}0m" if code else part
    return drawn


def wrap_words(text: str, columns: int) -> str:
    """The text in lines of at most `columns` cells, of whole words; overflow continues below its own column."""
    lines = list[str]()
    for line in text.split("\n"):
        table = COLUMN.match(line)
        indent = table.end() if table else len(line) - len(line.lstrip())
        below = " " * indent if indent <= columns // 2 else ""
        lines += wrap(line, columns, subsequent_indent=below, break_on_hyphens=False) or [""]
    return "\n".join(lines)


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
