from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest
from inline_snapshot import snapshot
from moa_client.chat import question
from moa_client.chat.question import MOST_CHARACTERS, read_question
from moa_shared.errors import ConfigError, DataError

from tests.support.messages import raises


def no_remark(text: str) -> None:
    raise AssertionError(text)


@contextmanager
def piped(data: bytes) -> Iterator[TextIO]:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    with open(reading, encoding="utf-8") as stdin:
        yield stdin


@pytest.mark.parametrize("prompt", [None, "", " \n"])
def test_space_is_no_question(prompt: str | None) -> None:
    with (
        piped(b" \n") as stdin,
        raises(ConfigError, snapshot("The prompt is empty. Give a prompt as an argument or on standard input.")),
    ):
        read_question(prompt, stdin, no_remark)


def test_with_a_prompt_a_device_is_not_read() -> None:
    with open("/dev/zero", encoding="utf-8") as stdin:
        assert read_question("w1", stdin, no_remark) == "w1"


def test_a_terminal_without_a_prompt_is_a_chat() -> None:
    other, terminal = os.openpty()
    try:
        with open(terminal, encoding="utf-8") as stdin:
            assert read_question(None, stdin, no_remark) is None
            assert read_question("w1", stdin, no_remark) == "w1"
    finally:
        os.close(other)


def test_input_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "QUIET_SECONDS", 0.0)
    reading, writing = os.pipe()
    said = []

    def remark(text: str) -> None:
        said.append(text)
        os.write(writing, b"one\n")
        os.close(writing)

    with open(reading, encoding="utf-8") as stdin:
        assert read_question("two", stdin, remark) == "one\ntwo"
    assert said == snapshot(
        ["(Waiting for standard input to end. Where there is none, add </dev/null to the command.)"]
    )


def test_input_without_end_is_refused() -> None:
    with raises(DataError, snapshot("Standard input has more than 1048576 characters. Ask about a part of it.")):
        read_question("w1", io.StringIO("x" * (MOST_CHARACTERS + 1)), no_remark)
