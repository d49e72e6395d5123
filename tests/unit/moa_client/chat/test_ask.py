"""Ctrl-C and keys while an answer runs; answers that end without the server."""

import asyncio
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop
from moa_client.chat import terminal
from moa_client.chat.ask import AnswerFollower, interruptible
from moa_client.chat.keys import ASK_WORDS, KeyPermission, Permit, blocking_afterwards, quiet_keys, unasked
from moa_client.chat.signals import exiting_on_signals, leaving_on_signals
from moa_client.chat.terminal import open_questions
from moa_client.chat.views import PipeView
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    Asked,
    CallAnswered,
    CallDecided,
    CallsLeft,
    CallWanted,
    Committed,
    Ended,
    Event,
    Failed,
    LinkChanged,
    LinkState,
    Permission,
    Provisional,
)
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.conversation import OpenConversation, Subscription
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.messages import Finish

from tests.support.answer_events import Told, letters
from tests.support.messages import raises


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_the_second_interrupt_does_not_wait_for_the_server() -> None:
    begun, asked, abandoned, cleaned_up = (asyncio.Event() for _ in range(4))

    async def answer() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(answer()), asked.set, abandoned.set))
    await begun.wait()
    interrupt()
    await asked.wait()
    assert not waiting.done()
    interrupt()
    assert not await waiting
    assert (abandoned.is_set(), cleaned_up.is_set()) == (True, True)


class Conversation(Subscription):
    """Tells these events of the answer, and these updates as they are, after each question, all at once."""

    is_gone = False

    def __init__(self, *events: Event | Update) -> None:
        super().__init__()
        self.answers: list[AnswerText] = []
        self.told: list[Told] = []
        self.events = events
        self.permitted: list[tuple[str, Permission]] = []

    def ask(self, question: str, options: AnswerOptions) -> None:
        if not isinstance(self.events[0], Update):
            self.begin(question)
        self.script(*self.events)

    def stop(self) -> None:
        raise AssertionError("There is no answer to stop any more.")

    abandon = stop

    def begin(self, question: str) -> None:
        self.told.append(Told(letters, question, len(self.told) + 1))
        self.push_update(Update(Asked(question), len(self.told)))

    def script(self, *events: Event | Update) -> None:
        for event in events:
            self.push_update(event if isinstance(event, Update) else self.told[-1].tell(event))

    def permit(self, call: str, permission: Permission) -> None:
        self.permitted.append((call, permission))
        self.script(
            Update(CallDecided("one", permission), 1),
            Update(CallAnswered("one", "2"), 1),
            Update(CallWanted("two", "sub", "{}", "test"), 1),
            Update(CallDecided("two", Permission.DENIED), 1),
            Update(CallAnswered("two", "No.", is_error=True), 1),
        )
        self.begin("")
        self.script(Committed((1,)), Ended(Finish.END_OF_TEXT, calls=1), Update(CallsLeft("Too many."), 2))


ALONE = (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))
TOO_LONG = ContextLengthError("Too long.")
TOO_LONG_WORDS = "Too long. Shorten the prompt, /reset the conversation, or raise the server's --context-length."


class OnAPipe:
    def __init__(self, conversation: Conversation, settle_seconds: float = 0.0, permit: Permit | None = None) -> None:
        self.out: list[str] = []
        self.remarks: list[str] = []
        view = PipeView(self.out.append, self.remarks.append, unverified=True)
        permit = permit or unasked((), self.remarks.append)
        self.follower = AnswerFollower(cast("OpenConversation", conversation), view, permit, settle_seconds)

    async def answer(self, question: str = "") -> bool:
        _, finished = await self.follower.answer(question, AnswerOptions(max_tokens=8))
        return finished

    @property
    def text(self) -> str:
        return "".join(self.out)


async def test_the_time_runs_only_while_the_server_is_away() -> None:
    asked = OnAPipe(Conversation(*ALONE, LinkChanged(LinkState.BACK), LinkChanged(LinkState.OFFLINE, "cut")), 0.01)
    assert await asked.answer()
    assert asked.remarks[:2] == ["(the server is back)", "(offline: cut)"]
    there = Conversation(*ALONE, LinkChanged(LinkState.BACK))
    asked = OnAPipe(there, 0.01)
    waiting = asyncio.ensure_future(asked.answer())
    for _ in range(100):  # until all was read: nothing in it waits
        await asyncio.sleep(0)
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    interrupt()
    await waiting


async def test_calls_are_asked_about_until_they_are_decided_and_all_answers_are_shown() -> None:
    questions: list[str] = []

    async def permit(wanted: CallWanted) -> Permission:
        questions.append(wanted.call)
        if wanted.call == "two":
            await asyncio.Event().wait()  # a key that never comes
        return Permission.ONCE

    wanted = Update(CallWanted("one", "add", '{"a": 1}', "test"), 1)
    conversation = Conversation(Committed((0,)), Ended(Finish.END_OF_TEXT, calls=2), wanted)
    asked = OnAPipe(conversation, permit=permit)
    assert await asked.answer()
    assert asked.text == "a\nb\n"
    assert (conversation.permitted, asked.follower.texts[-1].committed) == ([("one", Permission.ONCE)], "b")
    assert asked.remarks == [
        '* add {"a": 1} (a tool of test)',
        "  yes",
        "= 2",
        "* sub {} (a tool of test)",
        "  no",
        "! No.",
        "(Too many. /continue takes it up.)",
    ]


BEGUN, REFUSED = Update(Asked("why?"), 1), Update(Failed(TOO_LONG, taken_back=True))
WRITTEN = Update(Committed((0,), text="a"), 1)


@pytest.mark.parametrize(
    ("updates", "text"),
    [((BEGUN, WRITTEN, Update(Failed(TOO_LONG, text="b"), 1)), "ab\n"), ((REFUSED,), ""), ((BEGUN, REFUSED), "")],
)
async def test_why_an_answer_ends_early_or_never_begins_is_an_error(updates: tuple[Update, ...], text: str) -> None:
    asked = OnAPipe(Conversation(*updates))
    with raises(ContextLengthError, TOO_LONG_WORDS):
        await asked.answer("why?")
    assert asked.text == text


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a terminal; what its keyboard is connected to."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield master
    os.close(master)


def test_keys_are_kept_and_not_echoed(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with suppress(KeyError), quiet_keys():
        os.write(keyboard, b"next\r")
        assert os.read(sys.stdin.fileno(), 100) == b"next\r"  # at once, and Return is still Return
        assert termios.tcgetattr(sys.stdin.fileno())[3] & termios.ISIG  # interrupts work
        raise KeyError
    assert termios.tcgetattr(sys.stdin.fileno()) == before
    os.set_blocking(keyboard, False)
    with pytest.raises(BlockingIOError):
        os.read(keyboard, 100)  # nothing was echoed


def test_the_terminal_waits_for_slow_readers_again_after_a_prompt(keyboard: int) -> None:
    stdin, loop = sys.stdin.fileno(), uvloop.new_event_loop()
    with blocking_afterwards():
        loop.add_reader(stdin, bool)
        loop.run_until_complete(asyncio.sleep(0))
        loop.remove_reader(stdin)
    loop.close()
    assert os.get_blocking(stdin)


WANTED = CallWanted("call_1", "add", "{}", "test")


@pytest.mark.parametrize(("keys", "permission"), [("y", "once"), ("N", "denied"), ("xä\ra", "always")])
async def test_a_key_answers_but_none_that_was_typed_before_the_question(keys: str, permission: str) -> None:
    ours, theirs = os.pipe()
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        os.write(theirs, keys.encode() + b"z")

    os.write(theirs, b"yes, and\r")
    asking = KeyPermission(ours, (), say)
    assert await asyncio.wait_for(asking(WANTED), 60) is Permission(permission)
    assert (said, asking.take_typed(), asking.take_typed(), os.read(ours, 9)) == ([ASK_WORDS], "yes, and", "", b"z")
    os.close(ours)
    os.close(theirs)


async def test_what_is_allowed_is_not_asked_for_and_where_nobody_can_be_asked_the_rest_is_denied() -> None:
    said: list[str] = []
    assert await KeyPermission(-1, ("test/add",), said.append)(WANTED) is Permission.ALWAYS
    assert await unasked(("all",), said.append)(WANTED) is Permission.ALWAYS
    assert said == []
    assert await unasked(("add", "other/add"), said.append)(WANTED) is Permission.DENIED
    assert said == ["(add was not run, as nobody can be asked: --mcp-allow test/add lets it.)"]


def test_questions_are_kept_for_the_next_chat_where_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(path: Path | None) -> list[str]:
        return list(open_questions(path).load_history_strings())

    path = tmp_path / "state" / "questions"
    history = open_questions(path)
    for question in ("one", "two\nlines", "no \udce9 text"):
        history.append_string(question)
    assert kept(path) == ["no \ufffd text", "two\nlines", "one"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o077) == (0o600, 0)
    monkeypatch.setattr(terminal, "MOST_BYTES", 10)
    assert kept(path) == []
    for nowhere in (None, path / "questions"):
        history = open_questions(nowhere)
        history.append_string("one")
        assert (history.get_strings(), kept(nowhere)) == (["one"], [])


async def test_a_second_signal_does_not_wait_for_a_silent_server_and_what_the_end_meets_does_not_hide_it() -> None:
    unwound = False

    async def say_goodbye() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    async def run() -> None:
        nonlocal unwound
        async with leaving_on_signals(say_goodbye):
            os.kill(os.getpid(), signal.SIGHUP)
            try:
                await asyncio.sleep(60)
            finally:
                unwound = True
                raise OSError("the terminal is gone")

    with pytest.raises(SystemExit) as leaving:
        await run()
    assert (unwound, leaving.value.code) == (True, 128 + signal.SIGHUP)


@pytest.mark.parametrize("is_ignored", [False, True])
def test_while_it_loads_the_program_is_unwound_unless_the_signal_is_ignored(is_ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    leaving = nullcontext() if is_ignored else pytest.raises(SystemExit, match=str(128 + signal.SIGHUP))
    try:
        with leaving, exiting_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0 if is_ignored else 60)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
