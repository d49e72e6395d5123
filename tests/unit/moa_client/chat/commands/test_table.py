from __future__ import annotations

from pathlib import Path

import pytest
from moa_client.chat.commands import table
from moa_client.chat.commands.handler import KEPT, CommandHandler, short


def test_every_command_has_a_handler_and_a_line_of_help() -> None:
    handler = CommandHandler(None)  # type: ignore[arg-type]
    assert all(name in KEPT or hasattr(handler, f"_{name}") for name in table.NAMES if name != "bye")
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
