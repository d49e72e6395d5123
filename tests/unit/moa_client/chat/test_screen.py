"""What a terminal shows, by an emulated one: committed text plain, provisional text dim, corrections in place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_client.chat.screen import DIM, NORMAL, PLAIN_MARK, WITHDRAWN, Screen, cells
from moa_shared.text.plain_text import without_controls
from wcwidth import wcswidth

from tests.support.terminal import Display

COLUMNS, ROWS = 12, 8
TEXT = st.text(alphabet="ab \n漢字\u00e9x", max_size=14)  # pyte wraps before marks of no width, which terminals do not


class Terminal:
    def __init__(self, columns: int = COLUMNS, rows: int = ROWS, *, styled: bool = True, reflows: bool = True) -> None:
        self.screen = Screen(columns, rows, styled=styled, reflows=reflows)
        self.display = Display(columns, rows)

    def update(self, piece: str, provisional: str = "", status: str = "") -> None:
        self.display.show(self.screen.update(piece, provisional, status))

    def finish(self) -> None:
        self.display.show(self.screen.finish())

    def resize(self, columns: int, rows: int) -> None:
        self.display.show(self.screen.resize(columns, rows))

    def lines(self) -> list[str]:
        return self.display.text.split("\n")

    def text(self) -> str:
        return self.display.text.rstrip("\n")

    def dim(self) -> str:
        return self.display.dim


def shown(text: str, columns: int = COLUMNS) -> str:
    """How a text should look: words that do not fit go to the next line, longer ones are broken at its end."""
    rows = [""]
    for word in re.findall(r"\n| |[漢字]|[^\n 漢字]+", text):
        if word == "\n":
            rows.append("")
            continue
        if wcswidth(rows[-1]) + wcswidth(word) > columns and rows[-1] and word != " ":
            rows.append("")
        while wcswidth(word) > columns:
            rows[-1], word = word[:columns], word[columns:]
            rows.append("")
        rows[-1] += word
    return "\n".join(row.rstrip() for row in rows).rstrip("\n")


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


def test_the_status_line_is_below_and_goes_at_the_end() -> None:
    terminal = Terminal()
    terminal.update("", "", "link good | more than fits")
    assert terminal.lines()[:2] == ["", "link good"]
    terminal.update("answer", "", "slow")
    assert terminal.lines()[:2] == ["answer", "slow"]
    terminal.finish()
    assert terminal.text() == "answer"
    assert (terminal.display.cursor.x, terminal.display.cursor.y) == (0, 1)


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
    """Where the terminal does not lay its lines out again."""
    terminal = Terminal(columns=70, reflows=False)
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
@settings(max_examples=100)
def test_whatever_happened_the_screen_shows_the_text(steps: list[tuple[str, str, str]], styled: bool) -> None:
    """As long as nothing provisional has scrolled out, which 14 characters cannot."""
    terminal = Terminal(rows=40, styled=styled)
    committed = ""
    for piece, provisional, status in steps:
        terminal.update(piece, provisional, status)
        committed += piece
        mark = "" if styled or not provisional else PLAIN_MARK
        text = shown(committed + mark + provisional)
        rows = 1 + (committed + mark + provisional).count("\n") + text.count("\n")
        if status:
            assert (terminal.lines()[: len(text.split("\n"))], terminal.text().rpartition("\n")[2]) == (
                text.split("\n"),
                status,
            ), rows
        else:
            assert terminal.text() == text, (piece, provisional)
    terminal.finish()
    assert terminal.text() == shown(committed + (mark + provisional if steps else ""))


def test_lines_of_their_own_are_between_committed_and_provisional_text() -> None:
    terminal = Terminal(columns=40)
    terminal.update("sure", "perhaps", "good")
    terminal.display.show(terminal.screen.interject("told\x1b[2J\nmore"))
    assert terminal.text() == "sure\ntold\N{REPLACEMENT CHARACTER}[2J\nmore"
    terminal.update("", "perhaps", "good")
    terminal.update("right", "", "good")
    assert terminal.lines()[3:5] == ["right", "good"]
    terminal.finish()
    assert terminal.text().endswith("more\nright")


def test_dim_is_what_terminals_take_for_it() -> None:
    assert Screen(80, 24, styled=True).update("", "x", "") == f"{DIM}x{NORMAL}"


def test_words_are_not_broken_however_they_come() -> None:
    terminal = Terminal()
    for piece in ("one two", " thr", "ee fo", "ur five", "\n", "  six seven e", "ight"):
        terminal.update(piece, "", "good")
    terminal.finish()
    assert terminal.text() == "one two\nthree four\nfive\n  six seven\neight"


def test_a_word_that_is_confirmed_moves_no_more() -> None:
    terminal = Terminal()
    terminal.update("0123456 ab", "cdefg", "good")
    assert terminal.text() == "0123456\nabcdefg\ngood"
    assert terminal.dim() == "cdefggood"
    terminal.update("c ", "", "good")
    assert terminal.text() == "0123456 abc\ngood"


def test_a_long_word_is_broken_where_the_line_ends() -> None:
    terminal = Terminal()
    for piece in ("see ", "https://", "example.org/", "a/b/c", " now"):
        terminal.update(piece, "", "")
    assert terminal.text() == "see\nhttps://exam\nple.org/a/b/\nc now"


@pytest.mark.parametrize(
    ("line", "columns", "expected"),
    [
        ("link good | RTT 5 ms | 7 tokens/s", 40, "link good | RTT 5 ms | 7 tokens/s"),
        ("link good | RTT 5 ms | 7 tokens/s", 30, "link good | RTT 5 ms"),
        ("link OFFLINE (the server is silent) | RTT 5 ms", 24, "link OFFLINE (the…"),
        ("link good", 3, ""),
    ],
)
def test_a_status_line_that_does_not_fit_ends_with_a_whole_part(line: str, columns: int, expected: str) -> None:
    terminal = Terminal(columns=columns + 1)
    terminal.update("", "", line)
    assert terminal.lines()[1] == expected


class SoftDisplay(Display):
    """Knows which rows go on with the row before, since the terminal broke a line there itself."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.soft: set[int] = set()

    def draw(self, data: str) -> None:
        for character in data:
            before = self.cursor.y
            super().draw(character)
            if self.cursor.y > before:
                self.soft.add(self.cursor.y)

    def linefeed(self) -> None:
        super().linefeed()
        self.soft.discard(self.cursor.y)

    def erase_in_display(self, how: int = 0, *arguments: object, **options: object) -> None:
        super().erase_in_display(how, *arguments, **options)
        self.soft = {row for row in self.soft if row <= self.cursor.y}


class Reflowing(Terminal):
    """A terminal that lays its lines out again when its width changes."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.display = self.soft = SoftDisplay(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        before = self.soft
        text = ""
        for row in range(before.cursor.y + 1):
            text += "" if row in before.soft or not row else "\r\n"
            width = before.cursor.x if row == before.cursor.y else before.columns
            cells = "".join(before.buffer[row][at].data for at in range(width))
            text += cells if row == before.cursor.y or row + 1 in before.soft else cells.rstrip()
        self.display = self.soft = SoftDisplay(columns, rows)
        self.display.show(text)
        super().resize(columns, rows)


@pytest.mark.parametrize("widths", [(30, 25, 20, 15), (15, 30), (25, 12, 40), (30, 29, 28, 27, 26, 25)])
def test_nothing_of_a_status_line_is_left_in_the_text_when_the_width_changes(widths: tuple[int, ...]) -> None:
    terminal = Reflowing(40, 12)
    terminal.update("one two three four five ", "perhaps six", "link good | RTT 5 ms | 7 tokens/s")
    for width in widths:
        terminal.resize(width, 12)
        terminal.update("", "perhaps six", "link good | RTT 5 ms | 7 tokens/s")
        assert terminal.text().count("link good") == 1
        assert "".join(terminal.text().split()).startswith("onetwothreefourfiveperhapssixlinkgood")
    terminal.update("seven", "", "link good")
    terminal.finish()
    assert "".join(terminal.text().split()) == "onetwothreefourfiveseven"  # the terminal itself may break a word
