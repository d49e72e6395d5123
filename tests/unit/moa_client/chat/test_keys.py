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

import pytest
import uvloop
from moa_client.chat.keys import KeyPermission, blocking_afterwards, quiet_keys, typed_ahead, unasked
from moa_client.chat.messages import ASK_WORDS
from moa_client.conversation.events import CallWanted, Permission


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


def test_without_a_keyboard_nothing_is_typed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    assert typed_ahead() == 0


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
