"""The history's file: for its user alone, refused where it cannot be used, and whole whatever happens."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import Asked, Committed
from moa_client.conversation.options import AnswerOptions
from moa_client.history import database
from moa_client.history.database import FILE, MIGRATIONS
from moa_client.history.reading import ConversationOrigin
from moa_client.history.recorder import HistoryRecorder
from moa_client.history.store import LOCKS, HistoryStore
from moa_shared.errors import DiskFullError, HistoryError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Verdict

from tests.support.messages import says
from tests.support.programs import environment

ORIGIN = ConversationOrigin("toy")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = HistoryStore(tmp_path / "a" / "history")
        store.create(ORIGIN)
        folder = store.database.path.parent
        assert mode(folder) == 0o700
        assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
            (FILE, f"{FILE}-wal", f"{FILE}-shm", LOCKS), 0o600
        )
        store.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            f"PRAGMA user_version = {len(MIGRATIONS) + 1}",
            "history.db is of a newer version of moa (5, this one knows 4).",
        ),
        ("PRAGMA application_id = 0; CREATE TABLE theirs (id)", "history.db is a database of another program."),
        (b"no database " * 1000, "history.db is damaged, or no history; it was left as it is."),
    ],
)
def test_what_is_no_history_of_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    HistoryStore(tmp_path).close()
    if isinstance(content, bytes):
        (tmp_path / FILE).write_bytes(content)
    else:
        with closing(sqlite3.connect(tmp_path / FILE)) as connection:
            connection.executescript(content)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(HistoryError) as caught:
        HistoryStore(tmp_path)
    assert caught.value.message.endswith(words)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with says(HistoryError, "The history TMP/file/history/history.db cannot be written:"):
        HistoryStore(tmp_path / "file" / "history")


def test_a_full_disk_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    conversation, recorded = Conversation(100), store.create(ORIGIN)
    recorder = HistoryRecorder(store, recorded, conversation)
    conversation.ask([1], AnswerSettings())
    recorder.on_update(Update(Asked("Why?", AnswerOptions()), 1))
    pages = store.database.connection.execute("PRAGMA page_count").fetchone()[0]
    store.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    said = ""
    with says(DiskFullError, "The disk of the history TMP/history.db is full:"):
        for _ in range(1000):
            conversation.commit_verdict(Verdict(conversation.ask_id, len(conversation.tokens), 0, (2,)))
            recorder.on_update(Update(Committed((2,), text="word " * 100), 1), AnswerText(number=1))
            said += "word " * 100
    assert said
    store.close()
    store = HistoryStore(tmp_path)
    [answer] = store.load(recorded).answers
    assert (answer.text, answer.question) == (said, "Why?")
    assert store.database.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()


def test_older_files_are_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HistoryStore(tmp_path)
    conversation = store.create(ORIGIN)
    store.begin_answer(conversation, "Why?", AnswerOptions())
    store.close()
    newer = (*MIGRATIONS, ("CREATE TABLE more (id)", "INSERT INTO more SELECT id FROM conversations"))
    monkeypatch.setattr(database, "MIGRATIONS", newer)
    for _ in range(2):
        store = HistoryStore(tmp_path)
        assert store.database.connection.execute("SELECT id FROM more").fetchall() == [(conversation,)]
        assert store.load(conversation).answers[0].question == "Why?"
        store.close()
    broken = (*newer, ("CREATE TABLE most (id)", "CREATE TABLE more (id)"))
    monkeypatch.setattr(database, "MIGRATIONS", broken)
    with pytest.raises(HistoryError):
        HistoryStore(tmp_path)
    monkeypatch.setattr(database, "MIGRATIONS", newer)
    store = HistoryStore(tmp_path)  # nothing of what failed has stayed
    assert not store.database.connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'most'").fetchall()
    store.close()


def test_the_index_of_an_older_file_goes_with_all_its_words(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    conversation = store.create(ORIGIN)
    key = store.begin_answer(conversation, "Why?", AnswerOptions())
    connection = store.database.connection
    connection.execute("CREATE VIRTUAL TABLE words USING fts5 (question, answer)")
    connection.execute("CREATE TRIGGER forget_words AFTER DELETE ON answers BEGIN DELETE FROM words; END")
    connection.execute("INSERT INTO words (rowid, question, answer) VALUES (?, 'zanzibar', '')", (key,))
    connection.execute("PRAGMA user_version = 3")
    store.close()
    assert b"zanzibar" in (tmp_path / FILE).read_bytes()
    store = HistoryStore(tmp_path)
    assert [hit.identifier for hit in store.search("wHY")] == [conversation]
    store.delete([conversation])
    assert not [path for path in tmp_path.iterdir() if b"zanzibar" in path.read_bytes()]
    store.close()


WRITER = """
import sys
from pathlib import Path
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin
from moa_client.history.store import HistoryStore
store = HistoryStore(Path(sys.argv[1]))
conversation = store.create(ConversationOrigin("toy"))
for number in range(50):
    answer = store.begin_answer(conversation, f"{sys.argv[2]} {number}", AnswerOptions())
    for token in range(20):
        store.append_committed(answer, [token], [], f"{token} ")
    store.end_answer(answer, "end_of_text")
"""


def test_several_programs_make_and_write_it_at_once(tmp_path: Path) -> None:
    path = environment("proto", "shared", "client")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "history")]
    writers = [subprocess.Popen([*command, str(number)], env=path, stderr=subprocess.PIPE) for number in range(4)]
    assert [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers] == [(b"", 0)] * 4
    store = HistoryStore(tmp_path / "history")
    text = "".join(f"{token} " for token in range(20))
    questions = []
    for summary in store.list():
        stored = store.load(summary.identifier)
        assert {answer.text for answer in stored.answers} == {text}
        questions.append([answer.question for answer in stored.answers])
    assert sorted(questions) == [[f"{writer} {number}" for number in range(50)] for writer in range(4)]
    store.close()
