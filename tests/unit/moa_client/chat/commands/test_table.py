from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from moa_client.chat.commands import table
from moa_client.chat.commands.handler import KEPT, CommandHandler, short
from moa_shared.text.word_wrap import wrap_words


def test_every_command_has_a_handler_and_a_line_of_help() -> None:
    handler = CommandHandler(None)  # type: ignore[arg-type]
    assert all(name in KEPT or hasattr(handler, f"_{name}") for name in table.NAMES if name != "bye")
    text, page = table.help_text(), (Path(__file__).parents[5] / "docs" / "client.md").read_text("utf-8")
    for name in table.NAMES:
        assert f"/{name}" in text
        assert f"`/{name}" in page


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_help_keeps_its_columns_on_any_terminal(columns: int) -> None:
    lines = wrap_words(table.help_text(), columns).splitlines()
    commands = lines[: next(index for index, line in enumerate(lines) if line.startswith("Dim text"))]
    assert all(line[18:20] == "  " and line[20] != " " for line in commands)
    for before, after in pairwise(lines):  # no line ends earlier than it must
        if after.startswith(" " * 20):
            assert len(before) + len(after.split()[0]) >= columns


def test_aliases_are_commands() -> None:
    for alias, name in table.ALIASES.items():
        assert table.resolve(alias) == name
        assert name in table.NAMES
    assert table.resolve("set") == "set"
    assert table.resolve("sett") is None


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
