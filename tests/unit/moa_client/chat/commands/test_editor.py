from __future__ import annotations

import signal
from pathlib import Path

import pytest
from moa_client.chat.commands.desktop import edit_text, find_editor
from moa_shared.errors import ConfigError

from tests.support.messages import raises


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
    with raises(
        ConfigError,
        "The editor /nowhere/editor cannot be started: No such file or directory. Name another: export EDITOR=...",
    ):
        await edit_text("question")
