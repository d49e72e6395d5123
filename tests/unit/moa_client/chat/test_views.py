"""What a pipe, a terminal and a program are given for the same events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.chat import messages, views
from moa_client.chat.commands.table import help_text
from moa_client.chat.display.page import TerminalPage, make_page
from moa_client.chat.display.screen import Screen
from moa_client.chat.messages import drafter_words, execution_words, status_line
from moa_client.chat.views import JsonView, PipeView, TerminalView, View, make_view
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Event,
    HeldBack,
    LinkChanged,
    LinkState,
    Provisional,
    ServerChanged,
    Settled,
)
from moa_client.conversation.figures import LinkStatus
from moa_client.surface.messages import ConversationFacts
from moa_shared.protocol.finish_rule import Finish

from tests.support.terminal import Display
from tests.support.told import Told, letters

SIZE = (60, 12)


STATUS = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)


def show(view: View, events: Sequence[Event], told: Told | None = None) -> None:
    told = told or Told()
    view.begin()
    for event in events:
        view.show(told.tell(event), told.text)
    view.end(told.text)


class Alarm:
    """One timer, which a test lets run out."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None

    def set(self, seconds: float, call: Callable[[], None]) -> Any:
        self.ring = call
        return self

    def cancel(self) -> None:
        self.ring = lambda: None


def piped(*events: Event, unverified: bool = False) -> tuple[str, list[str]]:
    out: list[str] = []
    remarks: list[str] = []
    show(PipeView(out.append, remarks.append, unverified=unverified, later=Alarm().set), events)
    return "".join(out), remarks


def settled_answer() -> Told:
    ended = Ended(Finish.STOP, provisional=True)
    return Told(letters, "why is\nthe sky blue?", 1, Committed((0,)), Provisional((1,)), ended)


SETTLED = Settled((2,), AnswerOutcome.CORRECTED, Finish.STOP)


def test_an_outage_that_lasts_is_told_between_two_words() -> None:
    screen: list[str] = []
    alarm, told = Alarm(), Told(lambda tokens: "".join(" two words"[token] for token in tokens))
    view = PipeView(screen.append, lambda text: screen.append(f" {text}\n"), unverified=False, later=alarm.set)

    def tell(*events: Event) -> None:
        for event in events:
            view.show(told.tell(event), told.text)

    view.begin()
    tell(Committed((1, 2, 3, 4, 5)), LinkChanged(LinkState.OFFLINE, "the server is silent."), HeldBack())
    assert screen == ["two "]
    alarm.ring()
    tell(LinkChanged(LinkState.BACK), Committed((6, 7, 8, 9)), Ended(Finish.STOP))
    view.end(told.text)
    remarks = ["(offline: the server is silent)", messages.HELD_BACK_WORDS, messages.BACK_WORDS]
    assert "".join(screen) == "two " + "".join(f" {words}\n" for words in remarks) + "words\n"
    assert piped(LinkChanged(LinkState.OFFLINE, "cut"), Provisional((1,)), Ended(Finish.STOP, provisional=True)) == (
        "",
        ["(offline: cut)", messages.unverified_words(1, is_printed=False)],
    )


REPLACED = ServerChanged("model", "HOST serves other now: this conversation is kept.")


def test_a_pipe_and_a_terminal_are_told_once_that_the_server_was_replaced() -> None:
    out, remarks = piped(Committed((0,)), REPLACED, Ended(Finish.UNFINISHED, provisional=True))
    assert (out, remarks) == ("a\n", ["(HOST serves other now: this conversation is kept.)"])
    terminal, told = Emulated(), Told()
    terminal.view.begin()
    drafter = ServerChanged("drafter", "The server has another drafter now.")
    for event in (Committed((0,)), drafter, REPLACED):
        terminal.view.show(told.tell(event), told.text)
    assert terminal.lines == ["a", "status another model is served there"]
    terminal.view.end(told.text)
    assert " ".join(" ".join(terminal.lines).split()) == f"a ({drafter.message}) ({REPLACED.message})"


LIMITED = LinkChanged(LinkState.WAITING, "The server lets this key read and write 600 tokens a minute.", 11.2)


def test_a_limit_is_said_once_on_a_pipe_however_often_it_is_reached() -> None:
    cycle = (LIMITED, LinkChanged(LinkState.GOOD))
    out, remarks = piped(Committed((0,)), *cycle, Committed((1,)), *cycle, Committed((2,)), Ended(Finish.STOP))
    assert out == "abc\n"
    assert remarks == snapshot(
        ["(The server lets this key read and write 600 tokens a minute; the answer resumes in 12 s)"]
    )


async def test_a_terminal_counts_a_wait_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(views, "COUNT_SECONDS", 0.0)
    terminal, told = Emulated(), Told()
    view = TerminalView(terminal.page, lambda reason, _: reason, lambda: now)
    view.begin()
    view.show(told.tell(LIMITED), told.text)
    seen = []
    while now < 15.0:
        seen.append(" ".join(" ".join(terminal.lines).split()))
        now += 5.0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert seen == snapshot(
        [
            "resumes in 12 s: The server lets this key read and write…",
            "resumes in 7 s: The server lets this key read and write…",
            "resumes in 2 s: The server lets this key read and write…",
        ]
    )
    view.show(told.tell(LinkChanged(LinkState.GOOD)), told.text)
    assert terminal.lines == []
    view.show(told.tell(LIMITED), told.text)
    view.end(told.text)
    await asyncio.sleep(0)
    assert terminal.lines == []


def test_an_earlier_answer_is_reported_next_to_this_one() -> None:
    earlier = settled_answer()
    out: list[str] = []
    remarks: list[str] = []
    view = PipeView(out.append, remarks.append, unverified=False)
    lines = JsonView(out.append)
    for event in (Earlier(Corrected(1)), SETTLED):
        update = earlier.tell(event)
        view.show_earlier(update, earlier.text)
        lines.show_earlier(update, earlier.text)
    assert remarks == [messages.settled_remark(SETTLED, earlier.text)]
    [line] = out
    assert json.loads(line)["text"] == "ac"


CHANGED = "From the sentence that changes:\nac"


@pytest.mark.parametrize(
    ("settled", "verb", "share", "more"),
    [
        (Settled((1,), AnswerOutcome.CONFIRMED, Finish.STOP, 1, 1), "confirms", "", ""),
        (
            Settled((1, 3), AnswerOutcome.COMPLETED, Finish.STOP, 1, 1),
            "has completed",
            "; 1 of 1 token written here was right",
            " It goes on:\nabd",
        ),
        (
            Settled((2,), AnswerOutcome.CORRECTED, Finish.STOP, 24, 15),
            "has corrected",
            "; 15 of 24 tokens written here were right",
            f" {CHANGED}",
        ),
    ],
)
def test_the_outcome_of_an_earlier_answer_is_one_sentence_and_what_has_changed(
    settled: Settled, verb: str, share: str, more: str
) -> None:
    earlier = settled_answer()
    earlier.tell(settled)
    about = f'(The server {verb} the answer to "why is the sky blue?"{share}.)'
    assert messages.settled_remark(settled, earlier.text) == about + more


def test_a_long_question_is_cut() -> None:
    long = AnswerText("word " * 30)
    assert len(messages.settled_words(Settled((1,), AnswerOutcome.CONFIRMED, Finish.STOP), long)) < 90


def test_only_what_has_changed_is_said_again() -> None:
    shown = "It is blue. Light is scattered by air. It is red at night."
    assert messages.changed_part(shown, "It is blue. Light is scattered by the air. It is red.") == (
        "Light is scattered by the air. It is red."
    )
    assert messages.changed_part(shown, shown + " Really.") == "It is red at night. Really."
    assert messages.changed_part(shown + " Never.", shown) == "It is red at night."
    assert messages.changed_part("blue", "red") == "red"
    assert messages.changed_part("", "red.") == "red."


class Emulated:
    def __init__(self) -> None:
        self.display = Display(*SIZE)
        self.page = TerminalPage(
            Screen(*SIZE, styled=False), lambda: SIZE, self.display.show, styled=False, clock=lambda: 0.0
        )
        self.view = TerminalView(self.page, self.status)

    @staticmethod
    def status(reason: str, provisional: str) -> str:
        return " ".join(["status", *([reason] if reason else []), *(["guesses"] if provisional else [])])

    @property
    def lines(self) -> list[str]:
        return [line for line in self.display.text.split("\n") if line]


def test_a_terminal_has_the_status_below_while_the_answer_runs() -> None:
    terminal, told = Emulated(), Told()
    terminal.view.begin()
    assert terminal.lines == ["status"]
    for event in (Committed((0,)), LinkChanged(LinkState.OFFLINE, "cut"), Provisional((1,))):
        terminal.view.show(told.tell(event), told.text)
    assert (terminal.lines[0], terminal.lines[-1]) == ("a[unverified:] b", "status cut guesses")
    terminal.view.show(told.tell(LinkChanged(LinkState.BACK)), told.text)
    assert terminal.lines[-1] == "status guesses"
    terminal.view.end(told.text)
    assert terminal.lines[0] == "a[unverified:] b"
    assert "status" not in terminal.display.text


def test_nothing_that_a_model_wrote_acts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def escape(tokens: Sequence[int]) -> str:
        return "\x1b]52;c;cm0=\x07" if tokens else ""

    earlier = Told(escape, "why\x1b[2J?", 1, Ended(Finish.STOP, provisional=True), SETTLED).text
    assert "\x1b" in earlier.committed
    assert "\x1b" not in messages.settled_remark(SETTLED, earlier)
    assert "\x1b" not in messages.settled_remark(Settled((1,), AnswerOutcome.CONFIRMED, Finish.STOP), earlier)
    out: list[str] = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    view = make_view(lambda: STATUS, out.append, out.append, json_events=False, unverified=False)
    show(view, [Committed((1,)), Ended(Finish.STOP)], Told(escape))
    assert out
    assert "\x1b" not in "".join(out)


def test_programs_and_pipes_get_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(page: TerminalPage | None, *, json_events: bool) -> View:
        return make_view(lambda: STATUS, print, print, json_events=json_events, unverified=False, page=page)

    def page() -> TerminalPage | None:
        return make_page(lambda: SIZE, print)

    assert page() is None  # pytest captures standard output
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert page() is None
    assert isinstance(view(None, json_events=True), JsonView)
    assert isinstance(view(None, json_events=False), PipeView)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(view(page(), json_events=False), TerminalView)


def test_json_gives_the_whole_text_of_what_is_settled() -> None:
    out: list[str] = []
    events = (Committed((0,)), Provisional((1,)), Ended(Finish.STOP, provisional=True), SETTLED)
    show(JsonView(out.append), events)
    lines = [json.loads(line) for line in out]
    assert [line["event"] for line in lines] == ["committed", "provisional", "ended", "settled"]
    assert (lines[2]["text"], lines[2]["provisional"], lines[2]["verified"]) == ("", "b", False)
    assert lines[3]["text"] == "ac"


def test_everything_that_is_known_is_said() -> None:
    status = LinkStatus(LinkState.SLOW, 151.4, 12.34, 0.22, 1234, 45_600, by_server=0.4, memory_bytes=38_100)
    assert status_line(status) == (
        "link slow | RTT 151 ms | 12.3 tokens/s | 62 % drafted: 40 % by the server, 22 % here | "
        "1.2 kB up, 45.6 kB down (38.1 kB for the drafter)"
    )


def test_what_becomes_of_unchecked_text_is_said_in_words() -> None:
    away, there = (LinkStatus(state, None, 0.0, 0.0, 0, 0) for state in (LinkState.OFFLINE, LinkState.GOOD))
    texts = ["two words", "", "three\n"]
    assert status_line(away, texts, 2, "the server is silent") == (
        "link OFFLINE (the server is silent) | 3 words to be checked"
    )
    assert status_line(there, texts, 2) == "link good | the server checks 3 words"
    assert status_line(there, ["one"]) == "link good | the server checks 1 word"
    assert status_line(there, (), 1) == "link good | the server finishes 1 answer"
    assert status_line(away, (), 2) == "link OFFLINE | 2 answers to be finished"


def test_once_it_is_checked_it_says_how_much_was_right() -> None:
    there = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0, 24, 15)
    assert status_line(there) == "link good | standalone 24 tokens, 15 kept"
    assert "standalone" not in status_line(there, ["not yet"])


def test_ctrl_o_is_offered_to_who_can_type() -> None:
    away = LinkStatus(LinkState.OFFLINE, None, 0.0, 0.0, 0, 0, holds_back=True)
    assert status_line(away) == "waiting for the server (Ctrl-O: keep writing) | link OFFLINE"
    assert status_line(away, has_keys=False) == "waiting for the server | link OFFLINE"
    assert "Ctrl-O" in help_text()


def test_what_waits_for_the_next_prompt_is_counted() -> None:
    good = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
    assert status_line(good, typed_ahead=7) == "link good | 7 typed ahead"


def test_a_status_says_who_drafts_and_how_exact_the_text_is() -> None:
    bare = ConversationFacts("", "", "tiny", "host:1", online=False)
    assert (drafter_words(bare), execution_words(bare)) == ("no drafter that reads memory", "")
    paired = replace(bare, level="int8", drafter="online", drafter_reason="the fastest here", standalone="deep")
    assert drafter_words(paired) == snapshot("""\
drafter online: the fastest here
deep writes while no server answers\
""")
    assert drafter_words(replace(paired, standalone="")) == snapshot("drafter online: the fastest here")
    assert execution_words(paired) == snapshot("execution int8: the text does not depend on what is verified together")
    assert execution_words(replace(paired, level="bf16", exact=False)) == snapshot(
        "execution bf16: the text may depend on what is verified together"
    )
