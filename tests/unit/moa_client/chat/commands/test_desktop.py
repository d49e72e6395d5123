from __future__ import annotations

import signal
from pathlib import Path

import pytest
from moa_client.chat.commands import desktop, table
from moa_client.chat.commands.desktop import (
    copy_text,
    edit_text,
    find_editor,
    find_program,
    last_code,
    terminal_sequence,
)
from moa_client.chat.commands.handler import CommandHandler, short
from moa_shared.errors import ConfigError

from tests.support.messages import raises, says


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no code", ""),
        ("a\n```py\nx = 1\ny = 2\n```\nb\n```\nz\n```\nend", "z\n"),
        ("````\n```\nin it\n```\n````", "```\nin it\n```\n"),
        ("~~~sh\nls\n~~~", "ls\n"),
        ("a\n```py\nnot complete", "not complete"),
    ],
)
def test_the_last_block_of_code_is_found(text: str, code: str) -> None:
    assert last_code(text) == code


def make_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_is_used_where_it_has_a_desktop(tmp_path: Path) -> None:
    make_program(tmp_path, "xclip", "true")
    assert find_program({"PATH": str(tmp_path), "DISPLAY": ":0"}) == ("xclip", "-selection", "clipboard")
    assert find_program({"PATH": str(tmp_path)}) is None


async def test_it_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(desktop, "find_program", lambda: None)
    assert (await copy_text("abc", written.append)).startswith("Asked the terminal to copy 3 characters")
    assert written == [terminal_sequence("abc")]
    assert await copy_text("abc", None) == "Nothing here can copy: install wl-clipboard or xclip."
    make_program(tmp_path, "copier", f"cat > {tmp_path}/copied")
    monkeypatch.setattr(desktop, "find_program", lambda: (str(tmp_path / "copier"),))
    assert await copy_text("abc", None) == f"Copied 3 characters with {tmp_path}/copier."
    assert (tmp_path / "copied").read_text() == "abc"
    make_program(tmp_path, "copier", "cat > /dev/null; exit 1")
    assert (await copy_text("abc", None)).startswith("Nothing here can copy")


def test_the_users_editor_comes_first(tmp_path: Path) -> None:
    assert find_editor({"VISUAL": "code --wait", "EDITOR": "vi"}) == ["code", "--wait"]
    assert find_editor({"EDITOR": "vi"}) == ["vi"]
    with raises(ConfigError, "There is no editor. Name yours: export EDITOR=..."):
        find_editor({"PATH": str(tmp_path)})
    with raises(ConfigError, "$EDITOR is 'a \"b': a quotation mark is open. Close it."):
        find_editor({"EDITOR": 'a "b'})
    (tmp_path / "vi").write_text("#!/bin/sh\n")
    (tmp_path / "vi").chmod(0o755)
    assert find_editor({"PATH": str(tmp_path)}) == ("vi",)


async def test_the_text_is_what_the_editor_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nread first < "$1"; printf "%s\\nmore\\n\\n" "$first" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    before = signal.getsignal(signal.SIGINT)
    assert await edit_text("question") == "question\nmore"
    assert signal.getsignal(signal.SIGINT) is before
    editor.write_text("#!/bin/sh\nexit 1\n")
    assert await edit_text("question") == ""
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    with says(ConfigError, "The editor /nowhere/editor cannot be started:"):
        await edit_text("question")


def test_every_command_has_a_handler_and_a_line_of_help() -> None:
    handler = CommandHandler(None)  # type: ignore[arg-type]
    assert all(hasattr(handler, f"_{name}") for name in table.NAMES if name != "bye")
    text, page = table.help_text(), (Path(__file__).parents[5] / "docs" / "client.md").read_text("utf-8")
    for name in table.NAMES:
        assert f"/{name}" in text
        assert f"`/{name}" in page


def test_a_misspelt_command_gets_a_hint() -> None:
    assert table.unknown_words("stat").startswith("There is no command /stat. Did you mean /stats? ")
    assert table.unknown_words("xyz").startswith("There is no command /xyz. /help lists them")
    assert table.nearest("temprature", ("temperature", "top_k")) == " Did you mean temperature?"


@pytest.mark.parametrize(
    ("name", "before", "expected"),
    [
        ("set", (), table.SETTABLE),
        ("set", ("render",), ("on", "off")),
        ("set", ("seed",), ("default",)),
        ("set", ("seed", "1"), ()),
        ("copy", (), ("code",)),
        ("help", (), ()),
    ],
)
def test_what_may_follow_a_command(name: str, before: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert table.values_of(name, before) == expected


def test_a_long_question_is_shortened_and_made_one_line() -> None:
    assert short("a\n b") == "a b"
    assert short("x" * 61) == "x" * 57 + "..."
