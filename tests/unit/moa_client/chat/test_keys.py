"""Keys that are typed while an answer is written."""

import asyncio
import errno
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import uvloop
from moa_client.chat import terminal
from moa_client.chat.keys import ASK_WORDS, KeyPermission, blocking_afterwards, quiet_keys, unasked
from moa_client.chat.signals import exiting_on_signals, leaving_on_signals
from moa_client.chat.terminal import CommandCompleter, open_questions
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


def test_a_terminal_that_is_gone_is_no_error(keyboard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise termios.error(errno.EIO, "Input/output error")

    with quiet_keys():
        monkeypatch.setattr(termios, "tcsetattr", gone)


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
    assert await asyncio.wait_for(asking(WANTED), 20) is Permission(permission)
    assert (said, asking.take_typed(), asking.take_typed()) == ([ASK_WORDS], "yes, and", "")
    assert os.read(ours, 9) == b"z"
    os.close(ours)
    os.close(theirs)


async def test_what_is_allowed_is_not_asked_for_and_where_nobody_can_be_asked_the_rest_is_denied() -> None:
    said: list[str] = []
    assert await KeyPermission(-1, ("test/add",), said.append)(WANTED) is Permission.ALWAYS
    assert await unasked(("all",), said.append)(WANTED) is Permission.ALWAYS
    assert said == []
    assert await unasked(("add", "other/add"), said.append)(WANTED) is Permission.DENIED
    assert said == ["(add was not run, as nobody can be asked: --mcp-allow test/add lets it.)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/se", ["/set"]),
        ("/st", ["/status", "/standalone", "/stats"]),
        ("/set te", ["/set temperature"]),
        ("/file FOLDER/some n", ["/file FOLDER/some notes.txt"]),
        ("a /se", []),
        ("//se", []),
        ("/set\nte", []),
    ],
)
def test_commands_and_their_values_are_completed_and_questions_are_not(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    (tmp_path / "some notes.txt").touch()
    text = text.replace("FOLDER", str(tmp_path))
    found = CommandCompleter().get_completions(Document(text), CompleteEvent(completion_requested=True))
    lines = [text[: len(text) + each.start_position] + each.text for each in found]
    assert [line.replace(str(tmp_path), "FOLDER") for line in lines] == expected


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
