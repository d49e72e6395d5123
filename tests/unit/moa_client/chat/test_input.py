from __future__ import annotations

from pathlib import Path

import pytest
from moa_client.chat.input import KEPT_BYTES, MOST_BYTES, CommandCompleter, QuestionHistory
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


def kept(path: Path | None) -> list[str]:
    """The questions of before, newest first, as a new chat has them."""
    return list(QuestionHistory(path).load_history_strings())


def test_whole_questions_are_kept_for_the_next_chat(tmp_path: Path) -> None:
    path = tmp_path / "state" / "questions"
    history = QuestionHistory(path)
    history.append_string("a line of a question")
    history.keep("one")
    history.keep(" ")
    history.keep("two\nlines")
    history.keep("two\nlines")
    assert history.get_strings() == ["one", "two\nlines"]
    assert kept(path) == ["two\nlines", "one"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_without_a_file_only_this_chat_has_them() -> None:
    history = QuestionHistory(None)
    history.keep("one")
    assert history.get_strings() == ["one"]
    assert kept(None) == []


def test_a_long_file_loses_its_oldest_questions(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    entries = [f"\n# 2026-01-01\n+{number} {'x' * 1000}\n" for number in range(MOST_BYTES // 1000 + 1)]
    path.write_text("".join(entries))
    newest = kept(path)
    assert newest[0].startswith(f"{len(entries) - 1} ")
    assert len(newest) in range(KEPT_BYTES // 1100, KEPT_BYTES // 1000)
    assert all(question.endswith("x" * 1000) for question in newest)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_used_ends_no_chat(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = QuestionHistory(tmp_path / "file" / "questions")
    history.keep("one")
    assert history.get_strings() == ["one"]
    assert kept(tmp_path / "file" / "questions") == []
