"""What a terminal shows, by an emulated one: committed text plain, provisional text dim, corrections in place."""

import re
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from moa_client.chat.messages import FIRST_CUT_WORDS
from moa_client.chat.page import TerminalPage
from moa_client.chat.screen import MARKED_S, SAID_AGAIN, Block, Screen, wrap_words
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Event,
    Provisional,
    Refused,
    Settled,
)
from moa_shared.errors import ContextLengthError
from moa_shared.plain_text import without_controls
from moa_shared.protocol.messages import Finish
from wcwidth import wcswidth

from tests.support.answer_events import Told
from tests.support.skipping import examples
from tests.support.terminal import Display

COLUMNS, ROWS = 12, 8
TEXT = st.text(alphabet="ab \n漢字\u00e9x", max_size=14)  # pyte wraps before marks of no width, which terminals do not


class Terminal:
    def __init__(self, columns: int = COLUMNS, rows: int = ROWS, *, reflows: bool = True) -> None:
        self.screen = Screen(columns, rows, reflows=reflows)
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
        return [line for line in self.display.text.split("\n") if line]

    def text(self) -> str:
        return self.display.text.rstrip("\n")


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


def test_another_size_begins_a_new_line_and_takes_nothing_back() -> None:
    """Where the terminal does not lay its lines out again."""
    terminal = Terminal(columns=70, reflows=False)
    terminal.update("sure ", "wrong", "good")
    terminal.resize(69, ROWS)
    terminal.update("right", "", "good")
    terminal.finish()
    assert terminal.lines() == ["sure wrong", *wrap_words(SAID_AGAIN, 69).split("\n"), "sure right"]


def test_a_model_moves_no_cursor_and_sets_no_colours() -> None:
    assert without_controls("a\x1b[2Jb\x07\tc\r\n\x9bd") == "a�[2Jb�    c\n�d"
    screen = Screen(80, 24)
    screen.begin().update(0.0, "\x1b]0;title\x07", "")
    screen.say("\x1b[2J", 0.0, "\x1b[2J")
    assert set(re.findall("\x1b..?.?", screen.paint(0.0))) == {"\x1b[J\ufffd", "\x1b[4m", "\x1b[0m"}


@given(st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["", "good", "OFFLINE"])), max_size=12))
@settings(max_examples=examples(100))
def test_whatever_happened_the_screen_shows_the_text(steps: list[tuple[str, str, str]]) -> None:
    """As long as nothing provisional has scrolled out, which 14 characters cannot."""
    terminal = Terminal(rows=40)
    committed = ""
    for piece, provisional, status in steps:
        terminal.update(piece, provisional, status)
        terminal.wait(MARKED_S, status)
        committed += piece
        text = shown(committed + provisional)
        above, _, below = terminal.text().rpartition("\n") if status else (terminal.text(), "", "")
        assert (above.rstrip("\n"), below) == (text, status)
    terminal.finish()
    assert terminal.text() == shown(committed + (provisional if steps else ""))


class Chat(Terminal):
    """Answers that ended without the server, with a prompt below them."""

    def ended(self, committed: str, provisional: str) -> Block:
        answer = self.screen.begin()
        answer.update(self.now, committed, provisional)
        self.screen.end(is_verified=not provisional)
        self.paint()
        return answer

    def ask(self, line: str) -> None:
        self.display.show(line + "\r\n")  # as the prompt leaves it
        self.screen.adopt(line)
        self.paint()


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


@given(STEPS)
@settings(max_examples=examples(100))
def test_in_any_order_the_screen_shows_what_a_fresh_one_would(steps: list[tuple[str, str, str]]) -> None:
    """As long as nothing has scrolled out, however blocks grow and shrink above others."""
    chat = Chat(columns=COLUMNS, rows=200)
    chat.finish()
    parts: list[str | Block] = []
    texts: dict[Block, str] = {}
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
        expected = ""
        for part in parts:
            whole = part if isinstance(part, str) else part.text
            expected += whole + ("\n" if whole and whole[-1] != "\n" else "")
        assert (chat.text(), chat.display.cursor.x) == (shown(expected), 0)


def test_a_status_line_that_the_terminal_has_laid_out_again_is_drawn_over() -> None:
    status = "link good | RTT 5 ms | 7 tokens/s"
    for columns in (30, 15, 8):
        screen = Screen(40, 12)
        screen.begin().update(0.0, "one", "")
        screen.paint(0.0, [status])
        screen.resize(columns, 12)
        assert screen.paint(0.0, ["link"]).startswith(f"\r\x1b[{(len(status) - 1) // columns}A\x1b[J")


@given(st.text(alphabet="ab -漢", max_size=60), st.integers(8, 30))
def test_no_line_is_wider_than_the_terminal(text: str, columns: int) -> None:
    assert all(wcswidth(line) <= columns for line in wrap_words(text, columns).split("\n"))


@given(st.lists(st.text("ab \n漢", max_size=30), max_size=8), st.integers(0, 30), st.sampled_from(["", "good"]))
@settings(max_examples=examples(100))
def test_text_that_is_confirmed_is_whole_however_far_it_scrolls(pieces: list[str], ahead: int, status: str) -> None:
    terminal, whole, at = Terminal(rows=4), "".join(pieces), 0
    for piece in pieces:
        terminal.update(piece, whole[at + len(piece) :][:ahead], status)
        at += len(piece)
    terminal.finish()
    assert terminal.text() == shown(whole)


@example("字", ["aaaaaaaaaaa"], "")
@given(TEXT, st.lists(TEXT, max_size=6), TEXT)
@settings(max_examples=examples(100))
def test_what_was_wrong_is_said_again_to_its_end(committed: str, guesses: list[str], rest: str) -> None:
    """Its last word may go on below a row that was out of reach."""
    terminal = Terminal(rows=3, columns=40)
    terminal.update(committed, "")
    for guess in guesses:
        terminal.update("", guess * 4, "good")
    terminal.update(rest + "!", "")
    terminal.finish()
    last = shown(committed + rest + "!", 40).rpartition("\n")[2]
    assert "".join(terminal.text().split()).endswith("".join(last.split()))


SIZE = (70, 12)
WORDS = ["sure ", "guessed ", "wrong ", "right ", "more"]
CORRECTED = Settled((1, 3, 4), AnswerOutcome.CORRECTED, Finish.STOP, 2, 1)


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


class PromptedPage:
    def __init__(self) -> None:
        self.display = Display(*SIZE)
        self.is_typed_into = False
        self.page = TerminalPage(Screen(*SIZE), lambda: SIZE, self.display.show, clock=lambda: 0.0)
        self.page.status = self.status
        self.told = Told(decode, "why?")

    def request(self) -> None:
        self.display.show(self.page.draw())

    @staticmethod
    def status(reason: str, text: AnswerText | None) -> str:
        return " ".join(filter(None, ["status", reason, "guesses" if text is not None and text.provisional else ""]))

    def tell(self, event: Event) -> None:
        self.page.show(self.told.tell(event), self.told.text)

    def end_standalone(self) -> None:
        """`sure` is committed, `guessed wrong` is not."""
        self.page.begin()
        for event in (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True)):
            self.tell(event)
        self.page.end(self.told.text)

    def decide(self, *events: Earlier | Settled | Refused) -> None:
        for event in events:
            self.page.show_earlier(self.told.tell(event), self.told.text)

    @property
    def lines(self) -> list[str]:
        explained = [line for less in (0, 1) for line in wrap_words(FIRST_CUT_WORDS, SIZE[0] - less).split("\n")]
        return [line for line in self.display.text.split("\n") if line and line not in explained]


async def test_a_refused_answer_stays_as_it_is_and_who_is_typing_is_told_what_has_changed_instead() -> None:
    chat = PromptedPage()
    chat.end_standalone()
    chat.decide(Refused(ContextLengthError("Too long.")))
    assert (chat.lines[0], chat.display.dim.strip()) == ("sure guessed wrong", "guessed wrong")
    assert "The server refuses to check" in chat.lines[1]
    chat = PromptedPage()
    chat.end_standalone()
    chat.is_typed_into = True
    with chat.page.below(chat):
        chat.decide(Earlier(Committed((1,), 1)))
        assert (chat.lines, chat.display.dim.strip()) == (["sure guessed wrong"], "wrong")  # which moves nothing
        chat.decide(Earlier(Corrected(1)), Earlier(Committed((3,))))
        assert (chat.lines, chat.display.underlined) == (["sure guessed wrong"], "")
        chat.decide(Earlier(Committed((4,))), CORRECTED)
    assert chat.lines == [
        "sure guessed wrong",
        '(The server has corrected the answer to "why?"; 1 of 2 tokens written',
        "here was right.) From the sentence that changes:",
        "sure guessed right more",
    ]
    assert chat.display.underlined == "sure guessed right more"
