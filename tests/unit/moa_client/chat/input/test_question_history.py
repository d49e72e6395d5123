from __future__ import annotations

from pathlib import Path

from moa_client.chat.input import KEPT_BYTES, MOST_BYTES, QuestionHistory


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
