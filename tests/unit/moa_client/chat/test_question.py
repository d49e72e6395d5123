from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from inline_snapshot import snapshot
from moa_client.chat import question
from moa_client.chat.question import (
    MOST_BYTES,
    MOST_CHARACTERS,
    TextFile,
    folded,
    read_question,
    read_text_file,
    with_files,
)
from moa_shared.errors import ConfigError, DataError, MoaError

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


def test_text_is_read_whatever_program_has_written_it(tmp_path: Path) -> None:
    path = tmp_path / 'a "b".txt'
    path.write_bytes("\ufeffeins\r\nzwei ä\r\n".encode())
    assert read_text_file(path) == TextFile("a 'b'.txt", "eins\nzwei ä")


def test_files_are_framed_before_the_question_and_folded_for_a_person() -> None:
    asked = with_files("Which?", [TextFile("a.txt", "one\n\ntwo"), TextFile("b.txt", "")])
    assert asked == snapshot("""\
<file name="a.txt">
one

two
</file>

<file name="b.txt">

</file>

Which?\
""")
    assert folded(asked) == "[a.txt] [b.txt] Which?"
    assert with_files("Which?", []) == folded("Which?") == "Which?"
    with pytest.raises(DataError, match="together"):
        with_files("Which?", [TextFile("a.txt", "ä" * (MOST_BYTES // 4))] * 3)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.png", b"anything", "FOLDER/a.png is a picture: models read text only."),
        ("a", b"\x89PNG\r\n", "FOLDER/a is a picture: models read text only."),
        ("a.pdf", b"%PDF-1.7\n\0\xff", "FOLDER/a.pdf is not text in UTF-8."),
        ("a.txt", "ä".encode("latin-1"), "FOLDER/a.txt is not text in UTF-8."),
        ("a.txt", "a".encode("utf-16"), "FOLDER/a.txt is not text in UTF-8."),
        ("a.txt", b"a" * (MOST_BYTES + 1), "FOLDER/a.txt has more than 256 KiB."),
        ("a.txt", None, "The file FOLDER/a.txt cannot be read: No such file or directory."),
        (".", None, "FOLDER is not a file."),
    ],
)
def test_what_is_no_text_is_refused_by_its_name(tmp_path: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(MoaError) as raised:
        read_text_file(tmp_path / name)
    assert raised.value.message.replace(str(tmp_path), "FOLDER") == words
    assert raised.value.exit_code == (66 if data is None and name != "." else 65)
