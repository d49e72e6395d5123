"""What a terminal shows, by an emulated one: committed text plain, provisional text dim, corrections in place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_client.chat.display.answer_block import LESS_SURE, MARKED_S, UNVERIFIED, AnswerBlock
from moa_client.chat.display.layout import cells
from moa_client.chat.display.screen import SAID_AGAIN, Screen
from moa_client.chat.display.word_wrap import wrap_words
from moa_shared.text.plain_text import without_controls
from wcwidth import wcswidth

from tests.support.properties import examples
from tests.support.terminal import Display

COLUMNS, ROWS = 12, 8
TEXT = st.text(alphabet="ab \n漢字\u00e9x", max_size=14)  # pyte wraps before marks of no width, which terminals do not


class Terminal:
    """A screen with one answer, and a clock."""

    def __init__(
        self,
        columns: int = COLUMNS,
        rows: int = ROWS,
        *,
        styled: bool = True,
        reflows: bool = True,
        renders: bool = False,
    ) -> None:
        self.screen = Screen(columns, rows, styled=styled, reflows=reflows)
        self.screen.renders = renders
        self.display = Display(columns, rows)
        self.now = 0.0
        self.committed = self.provisional = ""
        self.answer = self.screen.begin()

    def update(self, piece: str, provisional: str = "", status: str = "") -> None:
        self.committed += piece
        self.provisional = provisional
        self.answer.update(self.now, self.committed, provisional)
        self.paint(status)

    def paint(self, *footer: str) -> None:
        self.display.show(self.screen.paint(self.now, footer))

    def wait(self, seconds: float, *footer: str) -> None:
        self.now += seconds
        self.paint(*footer)

    def finish(self) -> None:
        self.screen.end(is_verified=not self.provisional)
        self.paint()

    def resize(self, columns: int, rows: int) -> None:
        self.display.show(self.screen.resize(columns, rows))

    def lines(self) -> list[str]:
        return self.display.text.split("\n")

    def text(self) -> str:
        return self.display.text.rstrip("\n")

    def dim(self) -> str:
        return self.display.dim

    def marked(self) -> str:
        return self.display.underlined


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


def test_text_that_scrolled_out_is_said_again_from_the_line_where_it_is_wrong() -> None:
    terminal = Terminal(columns=70)
    terminal.update("one\nsure ", "wrong\n" * 20)
    terminal.update("right", "")
    assert re.sub(r"\s*\n", "\n", terminal.text()).count("wrong\n") == 20
    assert [line for line in terminal.lines() if line][-3:] == [*wrap_words(SAID_AGAIN, 70).split("\n"), "sure right"]
    assert terminal.marked() == "right"
    terminal.wait(MARKED_S)
    assert terminal.marked() == ""


def test_another_size_begins_a_new_line_and_takes_nothing_back() -> None:
    """Where the terminal does not lay its lines out again."""
    terminal = Terminal(columns=70, reflows=False)
    terminal.update("sure ", "wrong", "good")
    terminal.resize(69, ROWS)
    terminal.update("right", "", "good")
    terminal.finish()
    said = wrap_words(SAID_AGAIN, 69).split("\n")
    assert [line for line in terminal.lines() if line] == ["sure wrong", *said, "sure right"]


@pytest.mark.parametrize(("styled", "text"), [(True, "sure may be"), (False, f"sure {UNVERIFIED}may {LESS_SURE}be")])
def test_what_is_less_likely_to_stay_looks_different(styled: bool, text: str) -> None:
    terminal = Terminal(columns=60, styled=styled)
    terminal.answer.update(0.0, "sure ", "may be", likely=4)
    terminal.paint()
    assert terminal.text() == text
    assert (terminal.display.dim, terminal.display.italics) == (("may be", "be") if styled else ("", ""))
    terminal.answer.update(0.0, "sure may ", "be", likely=0)
    terminal.paint()
    assert terminal.display.italics == ("be" if styled else "")


def test_a_model_moves_no_cursor_and_sets_no_colours() -> None:
    assert without_controls("a\x1b[2Jb\x07\tc\r\n\x9bd") == "a�[2Jb�    c\n�d"
    screen = Screen(80, 24, styled=False)
    screen.begin().update(0.0, "\x1b]0;title\x07", "\x1b[31m")
    screen.say("\x1b[2J")
    assert "\x1b" not in screen.paint(0.0)


def test_marks_of_no_width_stay_with_their_character() -> None:
    assert list(cells("ae\u0301\n漢")) == ["a", "e\u0301", "\n", "漢"]


@given(
    st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["", "good", "OFFLINE"])), max_size=12),
    st.booleans(),
)
@settings(max_examples=examples(100))
def test_whatever_happened_the_screen_shows_the_text(steps: list[tuple[str, str, str]], styled: bool) -> None:
    """As long as nothing provisional has scrolled out, which 14 characters cannot."""
    terminal = Terminal(rows=40, styled=styled)
    committed = ""
    for piece, provisional, status in steps:
        terminal.update(piece, provisional, status)
        terminal.wait(MARKED_S, status)
        committed += piece
        mark = "" if styled or not provisional else UNVERIFIED
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


# ---------------------------------------------------------------- corrections


def test_one_wrong_word_is_marked_alone() -> None:
    terminal = Terminal(columns=80)
    terminal.update("It is said: ", "the cat sat on the mat, and the dog lay below it.", "good")
    terminal.update("the cat ", "", "back")
    terminal.update("stood on the mat, and the dog lay below it. Then they all went home.", "", "good")
    assert terminal.marked() == "stood"


@pytest.mark.parametrize("styled", [True, False])
def test_ten_cuts_in_one_answer(styled: bool) -> None:
    terminal = Terminal(columns=30, rows=12, styled=styled)
    expected = ""
    for number in range(10):
        terminal.update(f"served {number} ", "", "good")
        terminal.update("", "guessed", "OFFLINE")
        terminal.update("", "guessed and wrong", "OFFLINE")
        terminal.update("guessed ", "and wrong", "back")
        terminal.update("", "", "back")
        terminal.update("or not ", "", "good")
        assert terminal.marked() == ("or not" if styled else "")
        terminal.wait(MARKED_S, "good")
        expected += f"served {number} guessed or not "
    terminal.finish()
    assert terminal.text() == shown(expected, 30)
    assert (terminal.dim(), terminal.marked()) == ("", "")


# ---------------------------------------------------------------- after the answer


class Chat(Terminal):
    """Answers that ended without the server, with a prompt below them."""

    def ended(self, committed: str, provisional: str) -> AnswerBlock:
        answer = self.screen.begin()
        answer.update(self.now, committed, provisional)
        self.screen.end(is_verified=not provisional)
        self.paint()
        return answer

    def ask(self, line: str) -> None:
        self.display.show(line + "\r\n")  # as the prompt leaves it
        self.screen.adopt(line)
        self.paint()


@pytest.mark.parametrize("line", ["> two\nlines", "> " + "long " * 9])
def test_above_a_line_of_unknown_height_nothing_is_changed(line: str) -> None:
    chat = Chat(columns=30, rows=12)
    chat.finish()
    answer = chat.ended("sure ", "wrong")
    chat.ask(line)
    assert not answer.takes("sure right", "")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), TEXT, TEXT),
        st.tuples(st.just("say"), TEXT.filter(bool), st.just("")),
        st.tuples(st.just("ask"), st.text("ab \u6f22", max_size=4), st.just("")),
        st.tuples(st.just("decide"), TEXT, TEXT),
        st.tuples(st.just("wait"), st.just(""), st.just("")),
    ),
    max_size=14,
)


@given(STEPS, st.booleans())
@settings(max_examples=examples(150))
def test_in_any_order_the_screen_shows_what_a_fresh_one_would(steps: list[tuple[str, str, str]], styled: bool) -> None:
    """As long as nothing has scrolled out, however blocks grow and shrink above others."""
    chat = Chat(columns=COLUMNS, rows=200, styled=styled)
    chat.finish()
    parts: list[str | AnswerBlock] = []
    texts: dict[AnswerBlock, str] = {}
    for kind, text, more in steps:
        undecided = [block for block in texts if block.is_open]
        if kind == "answer":
            block = chat.ended(text, more + "?")
            parts.append(block)
            texts[block] = text
        elif kind == "say":
            chat.screen.say(text)
            parts.append(wrap_words(text, COLUMNS))
        elif kind == "ask":
            chat.ask("> " + text)
            parts.append("> " + text)
        elif kind == "decide" and undecided:
            texts[undecided[0]] += text
            undecided[0].update(chat.now, texts[undecided[0]], more)
            if not more:
                undecided[0].close()
        chat.wait(MARKED_S)
        label = "" if styled else UNVERIFIED
        expected = ""
        for part in parts:
            loose = "" if isinstance(part, str) else part.shown[len(texts[part]) :]
            whole = part if isinstance(part, str) else texts[part] + (label + loose if loose else "")
            expected += whole + ("\n" if whole and whole[-1] != "\n" else "")
        assert chat.text() == shown(expected)
        assert chat.display.cursor.x == 0


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


# ---------------------------------------------------------------- Markdown

MARKED_TEXT = st.lists(
    st.sampled_from(["**bold** ", "**", "*", "word ", "`code`", "`", "\n", "- ", "# ", "```\n", "漢", "x"]), max_size=6
).map("".join)


@given(st.lists(st.tuples(MARKED_TEXT, MARKED_TEXT, st.sampled_from(["", "good"])), max_size=10))
@settings(max_examples=examples(150))
def test_rendered_text_looks_as_if_it_had_come_at_once(steps: list[tuple[str, str, str]]) -> None:
    """As long as nothing has scrolled out, however its marks were cut and whatever was provisional in between."""
    terminal = Terminal(rows=200, renders=True)
    committed = ""
    for piece, provisional, status in steps:
        terminal.update(piece, provisional, status)
        terminal.wait(MARKED_S, status)
        committed += piece
    terminal.update("", "", "")
    terminal.wait(MARKED_S)
    fresh = Terminal(rows=200, renders=True)
    fresh.update(committed)
    assert terminal.text() == fresh.text()
    for mine, theirs in ((terminal, fresh), (fresh, terminal)):
        assert [row for row in cells_of(mine) if row[1]] == [row for row in cells_of(theirs) if row[1]]


def cells_of(terminal: Terminal) -> list[tuple[str, bool]]:
    """All characters on the screen, and whether they are bold."""
    buffer = terminal.display.buffer
    return [(buffer[row][column].data, buffer[row][column].bold) for row in range(200) for column in range(COLUMNS)]
