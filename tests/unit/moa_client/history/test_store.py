"""What is kept of conversations: found again, rewound and deleted, in a file for its user alone that is whole whatever
happens.
"""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import Asked, Committed, Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.history import database
from moa_client.history.database import FILE, MIGRATIONS, KeptResponse, KeptResponses
from moa_client.history.reading import AnswerStatus, ConversationOrigin
from moa_client.history.recorder import HistoryRecorder
from moa_client.history.store import LOCKS, HistoryStore
from moa_shared.errors import ConflictError, DiskFullError, HistoryError, NotFoundError
from moa_shared.protocol.messages import AnswerSettings, Verdict

from tests.support.messages import says
from tests.support.programs import environment

ORIGIN = ConversationOrigin("toy", b"t" * 32, b"k" * 32, "int8", "127.0.0.1:50051", "Be brief.")
OPTIONS = AnswerOptions(temperature=0.7, seed=(1 << 64) - 1, stop=("\n\n", "x"))
PROMPT, DRAFT, TARGET = Provenance.PROMPT, Provenance.DRAFT, Provenance.TARGET


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history", count(1000.0).__next__)
    yield made
    made.close()


def say(store: HistoryStore, conversation: str, question: str, answer: str) -> int:
    key = store.begin_answer(conversation, question, OPTIONS)
    store.append_committed(key, [1, 2], [PROMPT, TARGET], answer)
    store.end_answer(key, "end_of_text")
    return key


def test_a_conversation_is_read_as_it_was_written(store: HistoryStore) -> None:
    conversation = store.create(ConversationOrigin("toy"))
    store.set_origin(conversation, ORIGIN)
    key = store.begin_answer(conversation, "Why?", OPTIONS)
    store.append_committed(key, [7, 8, 9], [PROMPT, PROMPT, TARGET], "Be")
    store.set_provisional(key, [1, 2], "cause it", shown=2)
    store.append_committed(key, [1], [DRAFT], "cause", confirmed=1, waiting=[2], provisional=" it")
    [running] = store.load(conversation).answers
    assert (running.standing, running.ended, running.finish) == (AnswerStatus.RUNNING, None, "")
    assert (running.question_tokens, running.answer_tokens) == (2, 2)
    store.end_answer(key, "unfinished", verified=False, provisional=" it is", figures={"tokens": 2})
    stored = store.load(conversation)
    [answer] = stored.answers
    assert (stored.origin, stored.title, answer.options) == (ORIGIN, "", OPTIONS)
    assert (answer.question, answer.text, answer.provisional) == ("Why?", "Because", " it is")
    assert (answer.tokens, answer.provenance, answer.waiting) == ((7, 8, 9, 1), b"PPTD", (2,))
    assert (answer.standing, answer.finish, answer.decided_from) == (AnswerStatus.UNVERIFIED, "unfinished", 2)
    assert (answer.shown, answer.kept, answer.is_corrected, answer.stopped_at) == (2, 1, False, None)
    assert answer.figures == {"tokens": 2}
    store.set_provisional(key, [], "")
    store.append_committed(key, [3], [TARGET], " of gravity")
    store.end_answer(key, "end_of_text", outcome="corrected", text=".")
    [settled] = store.load(conversation).answers
    assert (settled.standing, settled.finish, settled.outcome) == (AnswerStatus.DECIDED, "end_of_text", "corrected")
    assert (settled.text, settled.provisional, settled.waiting) == ("Because of gravity.", "", ())
    assert settled.is_corrected
    assert settled.ended == answer.ended


def test_words_are_found_in_questions_answers_and_text_that_no_server_has_verified(store: HistoryStore) -> None:
    conversation = store.create(ORIGIN, "Physics")
    say(store, conversation, "What is gravity?", "A force between masses.")
    key = store.begin_answer(conversation, "And an élan?", OPTIONS)
    store.append_committed(key, [7, 8], [PROMPT, TARGET], "It is a kind of mome")
    store.set_provisional(key, [1], "ntum", shown=1)
    found = {
        text: [hit.number for hit in store.search(text)] for text in ("grav", "MASS force", "elan", "momentum", "x")
    }
    assert found == {"grav": [1], "MASS force": [1], "elan": [2], "momentum": [2], "x": []}
    [hit] = store.search("masses force")
    assert (hit.identifier, hit.title) == (conversation, "Physics")
    assert hit.snippet == "What is gravity? A force between masses."
    assert [hit.number for hit in store.search("a", 1)] == [2]  # the newest
    assert not store.search(" ")
    store.set_provisional(key, [], "")
    assert not store.search("momentum")
    store.rewind(conversation, 1)
    assert not store.search("elan")
    say(store, conversation, "重力とは何ですか", "質量の間の力です。100%")
    assert [hit.snippet for hit in store.search("の間")] == ["重力とは何ですか 質量の間の力です。100%"]
    assert not store.search("重力 %%")


def test_an_answer_that_is_replaced_stays_as_a_version_of_the_next_one(store: HistoryStore) -> None:
    conversation = store.create(ORIGIN)
    say(store, conversation, "First", "One")
    for question, text in (("Second", "Two"), ("Other", "Three"), ("Newest", "Four")):
        if question != "Second":
            store.rewind(conversation, 1, keeps_version=True)
        say(store, conversation, question, text)
    say(store, conversation, "Last", "Five")
    versions = [answer.versions for answer in store.load(conversation).answers]
    assert versions == [(), (("Second", "Two"), ("Other", "Three")), ()]
    store.rewind(conversation, 2, keeps_version=True)
    store.take_back(store.begin_answer(conversation, "Taken back", OPTIONS))
    store.rewind(conversation, 1)
    assert [answer.question for answer in store.load(conversation).answers] == ["First"]
    say(store, conversation, "Begun again", "Six")
    say(store, conversation, "And on", "Seven")
    assert [answer.versions for answer in store.load(conversation).answers] == [(), (), ()]


def files_with(store: HistoryStore, text: bytes) -> list[str]:
    return [path.name for path in store.database.path.parent.iterdir() if text in path.read_bytes().lower()]


@pytest.mark.parametrize("way", ["delete", "rewind", "take back", "title"])
def test_what_is_deleted_taken_back_or_replaced_leaves_no_trace_in_the_files(store: HistoryStore, way: str) -> None:
    conversation = store.create(ORIGIN, "Zanzibar" if way == "title" else "")
    say(store, conversation, "Kiwi?", "Fruit")
    other = store.create(ORIGIN) if way == "delete" else conversation
    keys = [
        say(store, other, "Zanzibar?", "An archipelago called Zanzibar. " * 20)
        for _ in range(0 if way == "title" else 9)
    ]
    assert files_with(store, b"zanzibar")
    match way:
        case "delete":
            store.delete([other])
            with pytest.raises(NotFoundError):
                store.load(other)
        case "rewind":
            store.rewind(conversation, 1)
        case "take back":
            for key in keys:
                store.take_back(key)
        case _:
            store.set_title(conversation, "Islands")
    assert files_with(store, b"kiwi") == [FILE]
    assert not files_with(store, b"zanzibar")
    assert not store.search("Zanzibar")
    assert [answer.question for answer in store.load(conversation).answers] == ["Kiwi?"]


def test_a_program_that_reads_delays_that_only(store: HistoryStore) -> None:
    conversation = store.create(ORIGIN)
    say(store, conversation, "Zanzibar?", "Yes")
    with closing(sqlite3.connect(store.database.path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT question FROM answers").fetchall()
        store.delete([conversation])
        store.create(ORIGIN)  # meanwhile others write
        assert files_with(store, b"zanzibar")
        other.execute("ROLLBACK")
    store.create(ORIGIN)
    assert not files_with(store, b"zanzibar")


def test_a_conversation_that_was_deleted_meanwhile_is_not_written(store: HistoryStore) -> None:
    conversation = store.create(ORIGIN)
    key = store.begin_answer(conversation, "Why?", OPTIONS)
    other = HistoryStore(store.database.path.parent)
    other.delete([conversation])
    other.close()
    for write in (
        lambda: store.append_committed(key, [7], [TARGET], "So"),
        lambda: store.set_provisional(key, [7], "So", shown=1),
        lambda: store.end_answer(key, "end_of_text"),
        lambda: store.begin_answer(conversation, "How?", OPTIONS),
    ):
        with says(HistoryError, "The conversation was deleted from the history meanwhile:"):
            write()


WRITER = """
import sys
from pathlib import Path
from moa_client.history.store import HistoryStore
from moa_shared.errors import ConflictError
store = HistoryStore(Path(sys.argv[1]))
for name in sys.argv[2:]:
    try:
        store.reopen(name)
        print("reopened", flush=True)
    except ConflictError as error:
        print(error, flush=True)
sys.stdin.read()
"""


def test_one_program_at_a_time_writes_a_conversation(store: HistoryStore) -> None:
    path = environment("proto", "shared", "client")
    command = [sys.executable, "-c", WRITER, str(store.database.path.parent)]
    left, held = store.create(ORIGIN), store.create(ORIGIN)
    store.release(left)
    store.reopen(held)  # again
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, left, held], env=path, text=True, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reopened\n"
        refusal = other.stdout.readline().replace(held, "ID")
        assert refusal == snapshot(
            "The conversation ID is open in another chat. Continue there, or close it there first.\n"
        )
        with pytest.raises(ConflictError):
            store.reopen(left)
        other.kill()
    store.reopen(left)


def response(identifier: str, previous: str | None = None, text: str = "x") -> KeptResponse:
    return KeptResponse(identifier, previous, 1000.0, "[]", text)


def test_a_chain_is_read_from_its_beginning_unless_a_part_of_it_was_deleted(store: HistoryStore) -> None:
    kept = store.responses
    for identifier, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        kept.keep(response(identifier, previous, "SECRET" if identifier == "a" else "x"))
    assert [each.identifier for each in kept.chain("c")] == ["a", "b", "c"]
    kept.delete("a")
    assert kept.load("b") == response("b", "a")
    for call in (lambda: kept.chain("c"), lambda: kept.load("a"), lambda: kept.delete("a")):
        with says(NotFoundError, "No response 'a' is kept here."):
            call()
    assert not files_with(store, b"secret")
    assert (kept.delete_all(), kept.count()) == (3, 0)


def test_those_not_continued_for_the_longest_time_make_room_from_their_end_on(store: HistoryStore) -> None:
    kept = KeptResponses(store.database, count(1000.0).__next__, most=4)
    for identifier, previous in (("a", None), ("b", "a"), ("x", None), ("c", "a")):
        kept.keep(response(identifier, previous))
    kept.keep(response("d", "c"))
    kept.keep(response("e", "d"))
    assert [each.identifier for each in kept.chain("e")] == ["a", "c", "d", "e"]
    for gone in ("b", "x"):
        with pytest.raises(NotFoundError):
            kept.load(gone)
    kept.keep(response("y"))  # the chain loses its end, not its beginning
    assert [each.identifier for each in kept.chain("d")] == ["a", "c", "d"]


TOY = ConversationOrigin("toy")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = HistoryStore(tmp_path / "a" / "history")
        store.create(TOY)
        folder = store.database.path.parent
        assert mode(folder) == 0o700
        assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
            (FILE, f"{FILE}-wal", f"{FILE}-shm", LOCKS), 0o600
        )
        store.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize(("content", "words"), [
    (
        f"PRAGMA user_version = {len(MIGRATIONS) + 1}",
        "history.db is of a newer version of moa (5, this one knows 4).",
    ),
    ("PRAGMA application_id = 0; CREATE TABLE theirs (id)", "history.db is a database of another program."),
    (b"no database " * 1000, "history.db is damaged, or no history; it was left as it is."),
])  # fmt: skip
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


def test_a_full_disk_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    conversation, recorded = Conversation(100), store.create(TOY)
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
    conversation = store.create(TOY)
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
    conversation = store.create(TOY)
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


MANY_WRITER = """
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
    command = [sys.executable, "-c", MANY_WRITER, str(tmp_path / "history")]
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
