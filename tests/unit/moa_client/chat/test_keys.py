"""Keys that are typed while an answer is written."""

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
from moa_client.chat import terminal
from moa_client.chat.keys import ASK_WORDS, KeyPermission, blocking_afterwards, quiet_keys, unasked
from moa_client.chat.signals import exiting_on_signals, leaving_on_signals
from moa_client.chat.terminal import CommandCompleter, key_bindings, open_questions
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
        assert termios.tcgetattr(sys.stdin.fileno())[3] & termios.ISIG  # interrupts work
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


def test_the_terminal_is_as_before_after_an_error(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with pytest.raises(KeyError), quiet_keys():
        raise KeyError
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_what_is_no_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("text"))
    with quiet_keys():
        assert sys.stdin.read() == "text"


def test_a_terminal_that_is_gone_is_no_error(keyboard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise termios.error(errno.EIO, "Input/output error")

    with quiet_keys():
        monkeypatch.setattr(termios, "tcsetattr", gone)


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
        ("/set te", ["/set temperature"]),
        ("/online", ["/online"]),
        ("/nothing ", []),
        ("a /se", []),
        ("//se", []),
        ("se", []),
        ("/set\nte", []),
    ],
)
def test_commands_and_their_values_are_completed_and_questions_are_not(text: str, expected: list[str]) -> None:
    assert completed(text) == expected


def test_a_path_is_completed(tmp_path: Path) -> None:
    (tmp_path / "some notes.txt").touch()
    assert completed(f"/file {tmp_path}/some n") == [f"/file {tmp_path}/some notes.txt"]


def kept(path: Path | None) -> list[str]:
    """The questions of before, newest first, as a new chat has them."""
    return list(open_questions(path).load_history_strings())


def test_questions_are_kept_for_the_next_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state" / "questions"
    history = open_questions(path)
    for question in ("one", "two\nlines", "no \udce9 text"):
        history.append_string(question)
    assert kept(path) == ["no \ufffd text", "two\nlines", "one"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o077) == (0o600, 0)
    monkeypatch.setattr(terminal, "MOST_BYTES", 10)
    assert kept(path) == []


def test_without_a_file_or_with_one_that_cannot_be_used_only_this_chat_has_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (None, tmp_path / "file" / "questions"):
        history = open_questions(path)
        history.append_string("one")
        assert (history.get_strings(), kept(path)) == (["one"], [])


def test_alt_enter_is_bound() -> None:
    assert [str(key) for key in key_bindings().bindings[0].keys] == ["Keys.Escape", "Keys.ControlM"]


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
