"""What a pipe, a terminal and a program are given for the same events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_client.chat.messages import settled_words, unverified_words
from moa_client.chat.screen import Screen
from moa_client.chat.views import JsonView, PipeView, TerminalView, View, make_view
from moa_client.conversation.answer_figures import Figures
from moa_client.conversation.events import (
    Committed,
    Corrected,
    Ended,
    Event,
    LinkChanged,
    LinkState,
    Provisional,
    Refused,
    ServerChanged,
    Settled,
)
from moa_client.conversation.transcript import Transcript
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish

from tests.support.terminal import Display

SIZE = (60, 12)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


class ClientEngine:
    figures = Figures()


def show(view: View, events: Sequence[Event], transcript: Transcript | None = None) -> None:
    transcript = transcript or Transcript(decode)
    view.begin()
    for event in events:
        view.show(event, transcript.apply(event), transcript)
    view.end(transcript.break_off(), transcript)


def piped(*events: Event, unverified: bool = False) -> tuple[str, list[str]]:
    out: list[str] = []
    remarks: list[str] = []
    show(PipeView(out.append, remarks.append, unverified=unverified), events)
    return "".join(out), remarks


def settled_answer() -> Transcript:
    earlier = Transcript(decode, question="why is\nthe sky blue?")
    earlier.apply(Committed((0,)))
    earlier.apply(Provisional((1,)))
    earlier.apply(Ended(Finish.STOP, provisional=True))
    return earlier


SETTLED = Settled((2,), True, Finish.STOP)


def test_a_pipe_gets_committed_text_alone() -> None:
    out, remarks = piped(
        Committed((0,)),
        LinkChanged(LinkState.OFFLINE, "the server is silent."),
        Provisional((1, 2)),
        LinkChanged(LinkState.BACK),
        Committed((1,), 1),
        Corrected(1),
        Committed((3,)),
        LinkChanged(LinkState.GOOD),
        Ended(Finish.STOP),
    )
    assert out == "abd\n"
    assert remarks == ["(offline: the server is silent)", "(the server is back)"]


REPLACED = ServerChanged("model", "HOST serves other now: this conversation is kept.")


def test_a_pipe_and_a_terminal_are_told_once_that_the_server_was_replaced() -> None:
    out, remarks = piped(Committed((0,)), REPLACED, Ended(Finish.UNFINISHED, provisional=True))
    assert (out, remarks) == ("a\n", ["(HOST serves other now: this conversation is kept.)"])
    terminal, transcript = Emulated(), Transcript(decode)
    drafter = ServerChanged("drafter", "The server has another drafter now.")
    for event in (Committed((0,)), drafter, REPLACED):
        terminal.view.show(event, transcript.apply(event), transcript)
    assert terminal.lines == ["a", "status another model is served there"]
    terminal.view.end(transcript.break_off(), transcript)
    assert " ".join(" ".join(terminal.lines).split()) == f"a ({drafter.message}) ({REPLACED.message})"


def test_a_pipe_gets_no_unverified_text() -> None:
    alone = (Provisional((1, 2)), Ended(Finish.STOP, provisional=True))
    out, remarks = piped(Committed((0,)), *alone)
    assert out == "a\n"
    [remark] = remarks
    assert remark == unverified_words(2, is_printed=False)
    assert piped(*alone)[0] == ""


def test_on_request_a_pipe_gets_it_last_with_a_remark() -> None:
    out, remarks = piped(Committed((0,)), Provisional((1, 2)), Ended(Finish.STOP, provisional=True), unverified=True)
    assert out == "abc\n"
    [remark] = remarks
    assert remark == unverified_words(2, is_printed=True)


def test_a_pipe_gets_what_was_settled_in_time_and_nothing_that_was_not() -> None:
    events = (
        Committed((0,)),
        Provisional((1, 2)),
        Ended(Finish.STOP, provisional=True),
        Settled((3,), True, Finish.STOP),
    )
    assert piped(*events) == ("ad\n", [])


def test_an_earlier_answer_is_reported_next_to_this_one() -> None:
    earlier = settled_answer()
    earlier.apply(SETTLED)
    out: list[str] = []
    remarks: list[str] = []
    view = PipeView(out.append, remarks.append, unverified=False)
    view.show_settled(SETTLED, earlier)
    assert not out
    assert remarks == [settled_words(SETTLED, earlier)]
    JsonView(out.append, cast("Any", ClientEngine())).show_settled(SETTLED, earlier)
    [line] = out
    assert json.loads(line)["text"] == "ac"


def test_a_settled_answer_is_named_by_its_question() -> None:
    earlier = settled_answer()
    unchanged = Settled((1,), False, Finish.STOP)
    assert settled_words(unchanged, earlier) == snapshot('(The server confirms the answer to "why is the sky blue?".)')
    earlier.apply(SETTLED)
    assert settled_words(SETTLED, earlier) == snapshot("""\
(The server has corrected the answer to "why is the sky blue?". It reads:)
ac\
""")
    long = Transcript(decode, question="word " * 30)
    assert len(settled_words(unchanged, long)) < 90


def test_a_refused_answer_is_named_by_its_question() -> None:
    words = settled_words(Refused(ContextLengthError("Too long.", hint="Shorten it.")), settled_answer())
    assert words == snapshot(
        '(The server refuses to check the answer to "why is the sky blue?": Too long. Shorten it. The conversation continues without it.)'
    )


class Emulated:
    def __init__(self) -> None:
        self.display = Display(*SIZE)
        self.view = TerminalView(Screen(*SIZE, styled=False), self.status, lambda: SIZE, self.display.show)

    @staticmethod
    def status(reason: str, shows_guesses: bool) -> str:
        return " ".join(["status", *([reason] if reason else []), *(["guesses"] if shows_guesses else [])])

    @property
    def lines(self) -> list[str]:
        return [line for line in self.display.text.split("\n") if line]


def test_a_terminal_has_the_status_below_while_the_answer_runs() -> None:
    terminal, transcript = Emulated(), Transcript(decode)
    terminal.view.begin()
    assert terminal.lines == ["status"]
    for event in (Committed((0,)), LinkChanged(LinkState.OFFLINE, "cut"), Provisional((1,))):
        terminal.view.show(event, transcript.apply(event), transcript)
    assert terminal.lines == ["a[unverified:] b", "status cut guesses"]
    event = LinkChanged(LinkState.BACK)
    terminal.view.show(event, transcript.apply(event), transcript)
    assert terminal.lines[-1] == "status guesses"
    terminal.view.end(transcript.break_off(), transcript)
    assert terminal.lines == ["a[unverified:] b"]


def test_on_a_terminal_an_earlier_answer_is_above_this_one() -> None:
    terminal, transcript, earlier = Emulated(), Transcript(decode), settled_answer()
    terminal.view.begin()
    event = Provisional((4,))
    terminal.view.show(event, transcript.apply(event), transcript)
    earlier.apply(SETTLED)
    terminal.view.show_settled(SETTLED, earlier)
    event2 = Committed((4, 5), 1)
    terminal.view.show(event2, transcript.apply(event2), transcript)
    assert " ".join(terminal.lines).startswith('(The server has corrected the answer to "why is the sky blue')
    assert terminal.lines[-3:] == ["ac", "ef", "status"]
    terminal.view.end("", transcript)
    assert terminal.lines[-2:] == ["ac", "ef"]


def test_nothing_that_a_model_wrote_acts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def escape(tokens: Sequence[int]) -> str:
        return "\x1b]52;c;cm0=\x07" if tokens else ""

    earlier = Transcript(escape, question="why\x1b[2J?")
    earlier.apply(Ended(Finish.STOP, provisional=True))
    earlier.apply(SETTLED)
    assert "\x1b" in earlier.committed
    assert "\x1b" not in settled_words(SETTLED, earlier)
    assert "\x1b" not in settled_words(Settled((1,), False, Finish.STOP), earlier)
    out: list[str] = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    view = make_view(cast("Any", ClientEngine()), out.append, out.append, json_events=False, unverified=False)
    show(view, [Committed((1,)), Ended(Finish.STOP)], Transcript(escape))
    assert out
    assert "\x1b" not in "".join(out)


def test_programs_and_pipes_get_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(*, json_events: bool) -> View:
        return make_view(
            cast("Any", ClientEngine()), lambda _: None, lambda _: None, json_events=json_events, unverified=False
        )

    assert isinstance(view(json_events=True), JsonView)
    assert isinstance(view(json_events=False), PipeView)  # pytest captures standard output
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view(json_events=False), PipeView)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(view(json_events=False), TerminalView)


def test_json_gives_the_whole_text_of_what_is_settled() -> None:
    out: list[str] = []
    events = (Committed((0,)), Provisional((1,)), Ended(Finish.STOP, provisional=True), SETTLED)
    show(JsonView(out.append, cast("Any", ClientEngine())), events)
    lines = [json.loads(line) for line in out]
    assert [line["event"] for line in lines] == ["committed", "provisional", "ended", "settled"]
    assert (lines[2]["text"], lines[2]["provisional"], lines[2]["verified"]) == ("", "b", False)
    assert lines[3]["text"] == "ac"
