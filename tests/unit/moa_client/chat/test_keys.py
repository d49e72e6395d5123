"""Keys that are typed while an answer is written."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from moa_client.chat.input import KEPT_BYTES, MOST_BYTES, CommandCompleter, QuestionHistory
from moa_client.chat.keys import KeyPermission, blocking_afterwards, quiet_keys, typed_ahead, unasked
from moa_client.chat.messages import ASK_WORDS
from moa_client.chat.signals import exiting_on_signals, leaving_on_signals
from moa_client.conversation.events import CallWanted, Permission
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document


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
    with quiet_keys():
        os.write(keyboard, b"next\r")
        assert os.read(sys.stdin.fileno(), 100) == b"next\r"  # at once, and Return is still Return
    assert termios.tcgetattr(sys.stdin.fileno()) == before
    os.set_blocking(keyboard, False)
    with pytest.raises(BlockingIOError):
        os.read(keyboard, 100)  # nothing was echoed


def test_the_terminal_stays_quiet_after_an_answer_and_is_given_back_to_an_editor(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with quiet_keys() as terminal:
        with quiet_keys():
            pass
        assert not termios.tcgetattr(sys.stdin.fileno())[3] & termios.ECHO
        with terminal.given_back():
            assert termios.tcgetattr(sys.stdin.fileno()) == before
        assert not termios.tcgetattr(sys.stdin.fileno())[3] & termios.ECHO


def test_the_terminal_waits_for_slow_readers_again_after_a_prompt(keyboard: int) -> None:
    terminal, loop = sys.stdin.fileno(), uvloop.new_event_loop()
    with blocking_afterwards():
        loop.add_reader(terminal, bool)
        loop.run_until_complete(asyncio.sleep(0))
        loop.remove_reader(terminal)
    loop.close()
    assert os.get_blocking(terminal)


def test_interrupts_still_work(keyboard: int) -> None:
    with quiet_keys():
        assert termios.tcgetattr(sys.stdin.fileno())[3] & termios.ISIG


async def test_ctrl_o_acts_at_once(keyboard: int) -> None:
    """The terminal turns it into SIGQUIT; as this one controls no process, the test sends it."""
    asked = asyncio.Event()
    before = signal.getsignal(signal.SIGQUIT)
    with quiet_keys(asked.set):
        assert termios.tcgetattr(sys.stdin.fileno())[6][termios.VQUIT] == b"\x0f"
        os.kill(os.getpid(), signal.SIGQUIT)
        async with asyncio.timeout(10):
            await asked.wait()
    assert signal.getsignal(signal.SIGQUIT) is before
    assert termios.tcgetattr(sys.stdin.fileno())[6][termios.VQUIT] != b"\x0f"


def test_the_terminal_is_as_before_after_an_error(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with pytest.raises(KeyError), quiet_keys():
        raise KeyError
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_what_is_no_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("text"))
    with quiet_keys():
        assert typed_ahead() == 0
        assert sys.stdin.read() == "text"


def test_a_terminal_that_is_gone_is_no_error(keyboard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise termios.error(errno.EIO, "Input/output error")

    with quiet_keys():
        monkeypatch.setattr(termios, "tcsetattr", gone)


def test_what_is_typed_ahead_is_counted_and_survives_an_interrupt(keyboard: int) -> None:
    assert typed_ahead() == 0
    with quiet_keys():
        os.write(keyboard, b"next\x03more")  # this terminal controls no process: Ctrl-C could only flush what is typed
        deadline = time.monotonic() + 10
        while typed_ahead() < 8 and time.monotonic() < deadline:
            time.sleep(0.001)  # the kernel takes keys in beside us
        assert typed_ahead() == 8


WANTED = CallWanted("call_1", "add", "{}", "test")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("keys", "permission"), [("y", "once"), ("N", "denied"), ("xä\ra", "always")])
async def test_a_key_answers_but_none_that_was_typed_before_the_question(
    pipe: tuple[int, int], keys: str, permission: str
) -> None:
    ours, theirs = pipe
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        os.write(theirs, keys.encode() + b"z")

    os.write(theirs, b"yes, and\r")
    asking = KeyPermission(ours, (), say)
    assert await asyncio.wait_for(asking(WANTED), 20) is Permission(permission)
    assert (said, asking.take_typed(), asking.take_typed()) == ([ASK_WORDS], "yes, and", "")
    assert os.read(ours, 9) == b"z"


async def test_what_is_allowed_is_not_asked_for_and_where_nobody_can_be_asked_the_rest_is_denied() -> None:
    said: list[str] = []
    assert await KeyPermission(-1, ("test/add",), said.append)(WANTED) is Permission.ALWAYS
    assert await unasked(("all",), said.append)(WANTED) is Permission.ALWAYS
    assert said == []
    assert await unasked(("add", "other/add"), said.append)(WANTED) is Permission.DENIED
    assert said == ["(add was not run, as nobody can be asked: --mcp-allow test/add lets it.)"]


def completed(text: str) -> list[str]:
    """The lines that Tab would make of one."""
    found = CommandCompleter().get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [text[: len(text) + each.start_position] + each.text for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/se", ["/set"]),
        ("/st", ["/status", "/standalone", "/stats"]),
        ("/qu", ["/quit"]),
        ("/set te", ["/set temperature"]),
        ("/set render ", ["/set render on", "/set render off"]),
        ("/copy ", ["/copy code"]),
        ("/nothing ", []),
        ("a /se", []),
        ("//se", []),
        ("se", []),
        ("/set\nte", []),
    ],
)
def test_commands_and_their_values_are_completed_and_questions_are_not(text: str, expected: list[str]) -> None:
    assert completed(text) == expected


def test_values_may_come_from_elsewhere() -> None:
    completer = CommandCompleter(lambda name, before: ["a", "ab", "b"] if (name, before) == ("set", ("x",)) else [])
    found = completer.get_completions(Document("/set x a"), CompleteEvent())
    assert [each.text for each in found] == ["a", "ab"]


def test_a_path_is_completed(tmp_path: Path) -> None:
    (tmp_path / "some notes.txt").touch()
    assert completed(f"/file {tmp_path}/some n") == [f"/file {tmp_path}/some notes.txt"]


def kept(path: Path | None) -> list[str]:
    """The questions of before, newest first, as a new chat has them."""
    return list(QuestionHistory(path).load_history_strings())


def test_whole_questions_are_kept_for_the_next_chat(tmp_path: Path) -> None:
    path = tmp_path / "state" / "questions"
    history = QuestionHistory(path)
    history.append_string("a line of a question")
    history.keep("one")
    history.keep(" ")
    history.keep("two\nlines")
    history.keep("two\nlines")
    assert history.get_strings() == ["one", "two\nlines"]
    assert kept(path) == ["two\nlines", "one"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_without_a_file_only_this_chat_has_them() -> None:
    history = QuestionHistory(None)
    history.keep("one")
    assert history.get_strings() == ["one"]
    assert kept(None) == []


def test_a_long_file_loses_its_oldest_questions(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    entries = [f"\n# 2026-01-01\n+{number} {'x' * 1000}\n" for number in range(MOST_BYTES // 1000 + 1)]
    path.write_text("".join(entries))
    newest = kept(path)
    assert newest[0].startswith(f"{len(entries) - 1} ")
    assert len(newest) in range(KEPT_BYTES // 1100, KEPT_BYTES // 1000)
    assert all(question.endswith("x" * 1000) for question in newest)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_used_ends_no_chat(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = QuestionHistory(tmp_path / "file" / "questions")
    history.keep("one")
    assert history.get_strings() == ["one"]
    assert kept(tmp_path / "file" / "questions") == []


def raised(number: int) -> None:
    os.kill(os.getpid(), number)


class Program:
    """One that waits until signals end it."""

    def __init__(self, *signals: int) -> None:
        self.happened: list[str] = []
        self._signals = list(signals)

    async def say_goodbye(self) -> None:
        if self._signals:
            raised(self._signals.pop())
            await asyncio.sleep(60)
        self.happened.append("goodbye")

    async def run(self, last_words: Exception | None = None) -> None:
        async with leaving_on_signals(self.say_goodbye):
            raised(self._signals.pop(0))
            try:
                await asyncio.sleep(60)
            finally:
                self.happened.append("unwound")
                if last_words is not None:
                    raise last_words


async def test_a_second_signal_does_not_wait_for_a_silent_server() -> None:
    program = Program(signal.SIGHUP, signal.SIGTERM)
    with pytest.raises(SystemExit) as leaving:
        await program.run()
    assert program.happened == ["unwound"]
    assert leaving.value.code == 128 + signal.SIGHUP


async def test_what_the_end_meets_does_not_hide_it() -> None:
    with pytest.raises(SystemExit):
        await Program(signal.SIGHUP).run(OSError("the terminal is gone"))


def test_while_it_loads_the_program_is_unwound() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def load() -> None:
        with exiting_on_signals():
            raised(signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(SystemExit) as leaving:
        load()
    assert leaving.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exiting_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            raised(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
