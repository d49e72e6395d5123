from __future__ import annotations

from pathlib import Path

import pytest
from moa_client.chat.input import CommandCompleter
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document


def completed(text: str) -> list[str]:
    """The lines that Tab would make of one."""
    found = CommandCompleter().get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [text[: len(text) + each.start_position] + each.text for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/se", ["/set"]),
        ("/st", ["/status", "/stats"]),
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
