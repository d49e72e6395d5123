"""One answer, or one remark, as it stands on the terminal: what can still be changed of it, and how it looks. Pure.

State: the text from where it may still change, what was shown there, and until when a correction is marked. Clock
readings are arguments, in seconds. Invariant: `gone`, `text` and `loose` add up to what was shown after the text that
will never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moa_shared.text.plain_text import without_controls
from prompt_toolkit.utils import get_cwidth

from moa_client.chat.display.layout import Cell, Look, Markdown, Placed, Style, cells, last_break
from moa_client.conversation.answer_text import Corrections, common

MARKED_S = 1.5  # long enough to be seen, short enough not to be in the way
UNVERIFIED = "[unverified:] "  # before provisional text on terminals without styles
LESS_SURE = "[less sure:] "  # before what of it is less likely to be right
CORRECTED = "[corrected:] "  # before a correction there


class AnswerBlock:
    """Text on lines of its own.

    Args:
        styled: provisional text is dim, what of it is less likely also in italics, and a correction is underlined;
            without styles labels say so.
        renders: its Markdown is shown as it is meant.
    """

    def __init__(self, text: str = "", *, styled: bool = True, renders: bool = False) -> None:
        self.is_open = not text  # more may come, or other text
        self.is_live = False  # it is written now: the cursor stays at its end
        self.is_cut_off = False  # other output follows it: nothing can be appended to it in its place
        self.contradicts = False  # the text differs where it can no longer be changed
        self._styled = styled
        self._text = text  # committed
        self._gone = ""  # provisional text that has scrolled out
        self._loose = ""  # provisional text after it
        self._likely = 0  # characters of both that are likely to be right
        self._has_label = True  # the label before provisional text can still be changed
        self._committed = text
        self._passed = 0  # characters before the text
        self._corrections = Corrections()
        self._marked: tuple[tuple[int, int], ...] = ()  # what is corrected, of what has passed and the text
        self._until: float | None = None  # when the mark goes
        self._markdown = Markdown() if renders else None  # of the committed text before it
        self._row = ""  # the committed text before it on the same line
        self._last = "\n"  # the character before all that can still be changed

    @property
    def shown(self) -> str:
        return self._committed + self._gone + self._loose

    @property
    def due(self) -> float | None:
        """When the mark of a correction goes; None: there is none."""
        return self._until

    def mark(self, now: float, text: str) -> None:
        begin = len(self._text)
        self._text += without_controls(text)
        self._marked, self._until = ((begin, len(self._text)),), now + MARKED_S

    def update(self, now: float, committed: str, provisional: str, likely: int | None = None) -> None:
        """Shows an answer as it is now.

        Args:
            committed: begins with all that was committed before.
            provisional: replaces the provisional text; `likely`: its characters that are likely to be right, None: all.
        """
        piece = without_controls(committed[len(self._committed) :])
        self._committed = committed
        loose = without_controls(provisional)
        whole = piece + loose
        if common(whole, self._gone) < min(len(self._gone), len(whole)):
            self._begin_again()
        if self._corrections.update(piece, loose):
            self._marked, self._until = self._corrections.stretches, now + MARKED_S
        hidden = min(len(self._gone), len(piece))
        self._row = (self._row + piece[:hidden]).rpartition("\n")[2]
        self._pass_by(piece[:hidden])
        self._gone = self._gone[hidden:]
        self._text += piece[hidden:]
        self._loose = loose[len(self._gone) :]
        self._likely = len(without_controls(provisional[:likely]))
        self._has_label = self._has_label or not (self._loose or self._gone)

    def takes(self, committed: str, provisional: str) -> bool:
        """Whether `update` can show that in its place."""
        whole = without_controls(committed[len(self._committed) :] + provisional)
        return not self.is_cut_off and whole.startswith(self._gone)

    def is_same(self, committed: str, provisional: str) -> bool:
        """Whether that is the text that it shows, although its style may differ."""
        return without_controls(committed[len(self._committed) :] + provisional) == self._gone + self._loose

    def close(self, *, is_verified: bool = True) -> None:
        """Called when nothing will change any more, apart from the mark.

        `is_verified`: no provisional text is right any more.
        """
        self.is_open = False
        self.contradicts = self.contradicts or (is_verified and bool(self._gone))

    def expire(self, now: float) -> None:
        if self._until is not None and now >= self._until:
            self._until = None

    def cells(self) -> Iterator[Cell]:
        """All that may still change."""
        looks, at = self._looks(), 0
        for begin, end in self._marks:
            yield from _styled(self._text[at:begin], Style.PLAIN, looks[at:])
            if not self._styled and not at:
                yield from _styled(CORRECTED, Style.LABEL)
            yield from _styled(self._text[begin:end], Style.MARKED, looks[begin:])
            at = end
        yield from _styled(self._text[at:], Style.PLAIN, looks[at:])
        if self._loose:
            if not self._styled and self._has_label and not self._gone:
                yield from _styled(UNVERIFIED, Style.LABEL)
            looks = looks[len(self._text) :]
            sure = min(len(self._loose), max(0, self._likely - len(self._gone)))
            yield from _styled(self._loose[:sure], Style.DIM, looks)
            if not self._styled and sure < len(self._loose) and (sure or not self._gone):
                yield from _styled(LESS_SURE, Style.LABEL)
            yield from _styled(self._loose[sure:], Style.UNSURE, looks[sure:])
        if not self.is_live and (self._loose or self._text or self._last)[-1] != "\n":
            yield Cell("\n", Style.LABEL)

    def firm_cells(self, columns: int) -> int:
        """How many cells from the first one on will never change, nor move."""
        firm = next((self._text[:begin] for begin, _ in self._marks), self._text)
        if self.is_open and self._markdown is not None:
            firm = firm[: firm.rfind("\n") + 1]  # what follows in a line may change how it looks
        elif self.is_open:
            cut = last_break(firm)
            firm = firm if get_cwidth(firm[cut:]) >= columns else firm[:cut]
        elif self._until is None:
            return sum(1 for _ in self.cells())
        return sum(1 for _ in cells(firm))

    def drop(self, cell: Placed) -> None:
        """Forgets the first cell, which will not be drawn again."""
        self._last = cell.text
        if cell.style is Style.LABEL and cell.text == "\n":
            self.is_cut_off = True
        elif cell.style is Style.LABEL:
            self._has_label, self._until = self._until is not None, None
        elif cell.style in (Style.DIM, Style.UNSURE):
            self._loose = self._loose[len(cell.text) :]
            self._gone += cell.text
        else:
            self._text = self._text[len(cell.text) :]
            self._row = ("" if cell.drawn.startswith("\r\n") else self._row) + cell.text.strip("\n")
            self._pass_by(cell.text)

    def cut_off(self) -> None:
        """Called when other output has followed, or the place of the text is no longer known."""
        self.is_cut_off = True
        self._row += self._text
        self._pass_by(self._text)
        self._gone += self._loose
        self._text = self._loose = ""
        self._until, self._last = None, "\n"

    def draw_again(self, columns: int) -> None:
        """Makes the line in which the text differs part of what is drawn."""
        line = self._row.rpartition("\n")[2]
        if get_cwidth(line) >= columns:  # it was longer when it was laid out
            line = line[-columns // 2 :].partition(" ")[2]
        if self._markdown is not None:
            self._markdown.go_back(line)
        self._text, self._row, self._gone = line + self._text, "", ""
        self._passed -= len(line)
        self.contradicts = self.is_cut_off = False

    def _looks(self) -> Sequence[Look]:
        """Of the characters of text and provisional text; none: they are shown as they are."""
        if self._markdown is None:
            return ()
        return self._markdown.looks(self._gone + self._text + self._loose)[len(self._gone) :]

    @property
    def _marks(self) -> Iterator[tuple[int, int]]:
        for begin, end in self._marked if self._until is not None else ():
            if end > self._passed:
                yield max(0, begin - self._passed), min(end - self._passed, len(self._text))

    def _pass_by(self, text: str) -> None:
        self._passed += len(text)
        if self._markdown is not None:
            self._markdown.pass_by(text)

    def _begin_again(self) -> None:
        """The text that has scrolled out is wrong."""
        self.contradicts = True
        self._row += self._text
        self._pass_by(self._text)
        self._text = self._gone = ""


def _styled(text: str, style: Style, looks: Sequence[Look] = ()) -> Iterator[Cell]:
    """The cells of a text. `looks`: of its characters; none: they are shown as they are."""
    at = 0
    for cell in cells(text):
        yield Cell(cell, style, *(looks[at] if looks else ()))
        at += len(cell)
