"""What a terminal shows, by an emulated one: committed text plain, provisional text dim, corrections in place."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_client.screen import DIM, NORMAL, PLAIN_MARK, WITHDRAWN, Screen, cells
from moa_shared.plain_text import without_controls
from wcwidth import wcwidth

COLUMNS, ROWS = 12, 8
TEXT = st.text(alphabet="ab \n漢字\u00e9x", max_size=14)  # pyte wraps before marks of no width, which terminals do not


class DimScreen(pyte.HistoryScreen):
    """pyte knows no dim; cells that are written while it is on are blinking instead."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        super().select_graphic_rendition(*(5 if attribute == 2 else attribute for attribute in attributes))


class Terminal:
    def __init__(self, columns: int = COLUMNS, rows: int = ROWS, *, styled: bool = True) -> None:
        self.screen = Screen(columns, rows, styled=styled)
        self.pyte = DimScreen(columns, rows, history=1000)
        self._stream = pyte.Stream(self.pyte)

    def feed(self, drawn: str) -> None:
        self._stream.feed(drawn)

    def update(self, piece: str, provisional: str = "", status: str = "") -> None:
        self._stream.feed(self.screen.update(piece, provisional, status))

    def finish(self) -> None:
        self._stream.feed(self.screen.finish())

    def resize(self, columns: int, rows: int) -> None:
        self._stream.feed(self.screen.resize(columns, rows))

    def lines(self) -> list[str]:
        above = ["".join(line[at].data for at in range(self.pyte.columns)) for line in self.pyte.history.top]
        return [line.rstrip() for line in [*above, *self.pyte.display]]

    def text(self) -> str:
        return "\n".join(self.lines()).rstrip("\n")

    def dim(self) -> str:
        rows = [self.pyte.buffer[row] for row in range(self.pyte.lines)]
        return "".join(row[at].data for row in rows for at in range(self.pyte.columns) if row[at].blink)


def shown(text: str, columns: int = COLUMNS) -> str:
    """How a terminal shows a text; wide characters that do not fit go to the next line (pyte itself cuts them)."""
    terminal = pyte.HistoryScreen(columns, ROWS, history=1000)
    stream = pyte.Stream(terminal)
    for character in text.replace("\n", "\r\n"):
        if wcwidth(character) == 2 and terminal.cursor.x == columns - 1:
            stream.feed(" ")
        stream.feed(character)
    above = ["".join(line[at].data for at in range(columns)) for line in terminal.history.top]
    return "\n".join(line.rstrip() for line in [*above, *terminal.display]).rstrip("\n")


def test_provisional_text_is_dim_until_it_is_confirmed() -> None:
    terminal = Terminal()
    terminal.update("sure ", "perhaps")
    assert terminal.text() == "sure perhaps"
    assert terminal.dim().strip() == "perhaps"
    terminal.update("per", "haps")
    assert terminal.text() == "sure perhaps"
    assert terminal.dim() == "haps"
    terminal.update("haps")
    assert (terminal.text(), terminal.dim()) == ("sure perhaps", "")


def test_a_correction_takes_back_lines_that_had_wrapped() -> None:
    terminal = Terminal()
    terminal.update("0123456789", "abcdefghijklmnopqrstuvwxyz\nmore", "good")
    terminal.update("AB")
    assert terminal.text() == "0123456789AB"
    terminal.update("C", "d")
    assert terminal.text() == "0123456789AB\nCd"


@pytest.mark.parametrize("end", ["\nnext", "next", "漢"])
def test_the_end_of_a_full_line_is_found_again(end: str) -> None:
    terminal = Terminal()
    terminal.update("0123456789ab", "wrong", "good")
    terminal.update("", "", "slow")
    terminal.update(end, "", "")
    assert terminal.text() == shown("0123456789ab" + end)


def test_the_status_line_stands_below_and_goes_at_the_end() -> None:
    terminal = Terminal()
    terminal.update("", "", "link good and more than fits")
    assert terminal.lines()[:2] == ["", "link good a"]
    terminal.update("answer", "", "slow")
    assert terminal.lines()[:2] == ["answer", "slow"]
    terminal.finish()
    assert terminal.text() == "answer"
    assert (terminal.pyte.cursor.x, terminal.pyte.cursor.y) == (0, 1)


def test_text_that_scrolled_out_is_marked_where_it_was_wrong() -> None:
    terminal = Terminal(columns=70)
    terminal.update("sure\n", "wrong\n" * 20)
    terminal.update("right", "")
    lines = terminal.lines()
    assert lines.count("wrong") == 20
    assert lines[lines.index(WITHDRAWN) + 1] == "right"


def test_text_that_scrolled_out_stays_where_it_was_right() -> None:
    terminal = Terminal()
    lines = [f"line {number}\n" for number in range(20)]
    terminal.update("sure\n", "".join(lines))
    terminal.update(lines[0], "".join([*lines[1:], "more"]))
    terminal.update("".join(lines[1:]), "more", "good")
    terminal.update("more", "", "good")
    terminal.finish()
    assert terminal.text() == "sure\n" + "".join(lines) + "more"


def test_another_size_begins_a_new_line_and_takes_nothing_back() -> None:
    terminal = Terminal(columns=70)
    terminal.update("sure ", "wrong", "good")
    terminal.resize(69, ROWS)
    terminal.update("right", "", "good")
    terminal.finish()
    assert [line for line in terminal.lines() if line] == ["sure wrong", WITHDRAWN, "right"]


def test_without_styles_provisional_text_has_a_mark() -> None:
    terminal = Terminal(columns=40, styled=False)
    terminal.update("sure ", "perhaps")
    assert terminal.text() == f"sure {PLAIN_MARK}perhaps"
    terminal.update("per", "haps")
    terminal.finish()
    assert terminal.text() == f"sure per{PLAIN_MARK}haps"


def test_a_model_moves_no_cursor_and_sets_no_colours() -> None:
    assert without_controls("a\x1b[2Jb\x07\tc\r\n\x9bd") == "a�[2Jb�    c\n�d"
    assert "\x1b" not in Screen(80, 24, styled=False).update("\x1b]0;title\x07", "\x1b[31m", "")


def test_marks_of_no_width_stay_with_their_character() -> None:
    assert list(cells("ae\u0301\n漢")) == ["a", "e\u0301", "\n", "漢"]


@given(
    st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["", "good", "OFFLINE"])), max_size=12),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_whatever_happened_the_screen_shows_the_text(steps: list[tuple[str, str, str]], styled: bool) -> None:
    """As long as nothing provisional has scrolled out, which 14 characters cannot."""
    terminal = Terminal(rows=40, styled=styled)
    committed = ""
    for piece, provisional, status in steps:
        terminal.update(piece, provisional, status)
        committed += piece
        mark = "" if styled or not provisional else PLAIN_MARK
        below = f"\n{status}" if status else ""
        assert terminal.text() == shown(committed + mark + provisional + below), (piece, provisional)
    terminal.finish()
    assert terminal.text() == shown(committed + (mark + provisional if steps else ""))


def test_lines_of_their_own_stand_between_committed_and_provisional_text() -> None:
    terminal = Terminal(columns=40)
    terminal.update("sure", "perhaps", "good")
    terminal.feed(terminal.screen.interject("told\x1b[2J\nmore"))
    assert terminal.text() == "sure\ntold\N{REPLACEMENT CHARACTER}[2J\nmore"
    terminal.update("", "perhaps", "good")
    terminal.update("right", "", "good")
    assert terminal.lines()[3:5] == ["right", "good"]
    terminal.finish()
    assert terminal.text().endswith("more\nright")


def test_dim_is_what_terminals_take_for_it() -> None:
    assert Screen(80, 24, styled=True).update("", "x", "") == f"{DIM}x{NORMAL}"
