"""The history: conversations on this device's disk, written as they happen.

Invariants: each call is one transaction, complete when it returns, so that a surface that stores text before it shows
it loses nothing that was shown, whenever the program is killed; committed text only grows. Several programs may use the
file at once, each conversation is written by one of them: a lock on a byte of a file of its own, which ends with its
program.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ConflictError, HistoryError

from moa_client.conversation.options import AnswerOptions
from moa_client.history.database import Database, KeptResponses
from moa_client.history.reading import (
    TEXT,
    AnswerStatus,
    ConversationOrigin,
    HistoryReader,
    StoredConversation,
    pack_options,
    pack_provenance,
    pack_tokens,
    unpack_tokens,
)

if TYPE_CHECKING:
    from moa_client.conversation.events import Provenance

CANCELLED = "cancelled"  # the finish of an answer that the user has stopped
LOCKS = "writers.lock"


class HistoryStore(HistoryReader):
    """The conversations that this device keeps; its calls raise HistoryError, or DiskFullError if nothing was written.

    It is in the user's data folder unless `folder` is another; `clock` gives seconds since 1970.
    """

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(Database(folder))
        self._connection = self.database.connection
        self._transaction = self.database.transaction
        self._clock = clock
        self._writers = Writers(self.database.path.with_name(LOCKS))
        self.release = self._writers.release  # this program writes a conversation no more: others may reopen it
        self.responses = KeptResponses(self.database, clock)

    def close(self) -> None:
        """Closes the file, and leaves all conversations to other programs."""
        self._writers.close()
        self.database.close()

    def create(self, origin: ConversationOrigin, title: str = "") -> str:
        """Begins a conversation; its identifier. Lists show it once it has a question: call this with the first one."""
        now = self._clock()
        identifier = base64.b32encode(secrets.token_bytes(5)).decode().lower()
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO conversations (id, title, created, updated, model, target, tokenizer, execution, server, "
                "system) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (identifier, title, now, now, *astuple(origin)),
            )
        self._writers.hold(identifier)
        return identifier

    def set_origin(self, conversation: str, origin: ConversationOrigin) -> None:
        """Called when the server or its level of execution is another one."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE conversations SET model = ?, target = ?, tokenizer = ?, execution = ?, server = ?, system = ? "
                "WHERE id = ?",
                (*astuple(origin), conversation),
            )

    def attribute(self, conversation: str, given: Mapping[str, Any]) -> None:
        """Says which model has given the answers so far, where that is not said; `given`: as options of an answer."""
        with self._transaction() as connection:
            query = "SELECT key, options FROM answers WHERE conversation = ?"
            for key, packed in connection.execute(query, (conversation,)).fetchall():
                self._set(key, options=json.dumps({**given, **json.loads(packed)}))

    def set_title(self, conversation: str, title: str) -> None:
        with self._transaction(erases=True) as connection:
            connection.execute("UPDATE conversations SET title = ? WHERE id = ?", (title, conversation))

    def begin_answer(self, conversation: str, question: str, options: AnswerOptions) -> int:
        """Appends a question; the key of its answer."""
        now = self._clock()
        with self._transaction() as connection:
            done = connection.execute(
                "INSERT INTO answers (conversation, position, question, options, standing, asked) VALUES (?, "
                "(SELECT coalesce(max(position) + 1, 0) FROM answers WHERE conversation = ?), ?, ?, ?, ?)",
                (conversation, conversation, question, pack_options(options), AnswerStatus.RUNNING.value, now),
            )
            connection.execute("UPDATE conversations SET updated = ? WHERE id = ?", (now, conversation))
        return done.lastrowid or 0

    def continue_answer(self, answer: int, options: AnswerOptions) -> None:
        """An answer that had ended goes on, as if it had been asked with these options."""
        with self._transaction() as connection:
            running = AnswerStatus.RUNNING.value
            self._set(answer, options=pack_options(options), standing=running, finish="", stopped_at=None, ended=None)
            connection.execute("UPDATE provisional SET is_corrected = 0 WHERE answer = ?", (answer,))

    def append_committed(
        self,
        answer: int,
        tokens: Sequence[int],
        provenance: Sequence[Provenance],
        text: str,
        *,
        confirmed: int = 0,
        waiting: Sequence[int] = (),
        provisional: str = "",
    ) -> None:
        """Appends committed tokens, before their text is shown.

        Args:
            tokens: new ones; before the answer's first one come those of its question (provenance PROMPT).
            text: what they add to the answer's committed text.
            confirmed: how many of them had been shown as provisional in the same place.
            waiting: provisional tokens that remain after them; `provisional`: their text.
        """
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO pieces (answer, number, tokens, provenance, text) VALUES (?, "
                "(SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE answer = ?), ?, ?, ?)",
                (answer, answer, pack_tokens(tokens), pack_provenance(provenance), text),
            )
            if confirmed or waiting or provisional:
                self._set_provisional(answer, waiting, provisional, kept=confirmed)

    def set_provisional(self, answer: int, waiting: Sequence[int], provisional: str, *, shown: int = 0) -> None:
        """Sets all provisional text of an answer, before it is shown.

        `waiting` are its tokens, none if it was withdrawn; `shown` of them are new.
        """
        with self._transaction():
            self._set_provisional(answer, waiting, provisional, shown=shown)

    def end_answer(
        self,
        answer: int,
        finish: str,
        *,
        verified: bool = True,
        outcome: str = "",
        text: str = "",
        provisional: str = "",
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Ends an answer, or decides one that had ended without the server.

        Args:
            finish: why, as in the events for programs ("end_of_text"); empty: an error has broken it off.
            verified: False: it ends without the server, which decides it later.
            outcome: what has become of one that had, as in the events for programs ("confirmed").
            text: what remains to be appended to the committed text.
            provisional: if not verified, all provisional text.
        """
        with self._transaction():
            if verified:
                self._close(answer, finish, text, outcome)
            else:
                self._leave(answer, finish, provisional)
            if figures is not None:
                self._set(answer, figures=json.dumps(dict(figures)))

    def refuse(self, answer: int) -> None:
        """The server will not verify an answer that ended without it: what was shown is kept to be read."""
        with self._transaction():
            self._set(answer, standing=AnswerStatus.REFUSED.value)

    def take_back(self, answer: int) -> None:
        """Forgets a question that got no answer, with what was in its place before."""
        with self._transaction(erases=True) as connection:
            query = "DELETE FROM answers WHERE key = ? RETURNING conversation"
            for (conversation,) in connection.execute(query, (answer,)).fetchall():
                connection.execute(
                    "DELETE FROM versions WHERE conversation = ? AND place >= "
                    "(SELECT count(*) FROM answers WHERE conversation = ?)",
                    (conversation, conversation),
                )

    def rewind(self, conversation: str, answers: int, *, keeps_version: bool = False) -> None:
        """Keeps the first `answers` answers of a conversation.

        `keeps_version`: what was shown of the next one stays, as a version of the one that will be in its place.
        """
        beyond = "FROM answers WHERE conversation = ? ORDER BY position LIMIT ? OFFSET ?"
        with self._transaction(erases=True) as connection:
            if keeps_version:
                connection.execute(
                    f"""INSERT INTO versions SELECT conversation, place, (SELECT count(*) FROM versions
                        WHERE versions.conversation = gone.conversation AND versions.place = gone.place), question, said
                    FROM (SELECT conversation, ? AS place, question, {TEXT} AS said {beyond}) AS gone
                    WHERE said != ''""",
                    (answers, conversation, 1, answers),
                )
            connection.execute(f"DELETE FROM answers WHERE key IN (SELECT key {beyond})", (conversation, -1, answers))
            place = answers + keeps_version
            connection.execute("DELETE FROM versions WHERE conversation = ? AND place >= ?", (conversation, place))

    def delete(self, conversations: Sequence[str]) -> None:
        """Deletes conversations for good: what was in the file is overwritten, soon also in its log."""
        with self._transaction(erases=True) as connection:
            connection.executemany("DELETE FROM conversations WHERE id = ?", [(each,) for each in conversations])

    def reopen(self, conversation: str) -> StoredConversation:
        """As `load`, to continue the conversation: an answer that was cut short by a kill is left to the server."""
        self._writers.hold(self.load(conversation).identifier)
        with self._transaction() as connection:
            cut_short = "SELECT key FROM answers WHERE conversation = ? AND standing = 'running'"
            for (answer,) in connection.execute(cut_short, (conversation,)).fetchall():
                self._leave(answer, "")
            return self.load(conversation)

    def _set(self, answer: int, **values: object) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        done = self._connection.execute(f"UPDATE answers SET {names} WHERE key = ?", (*values.values(), answer))
        if not done.rowcount:
            raise sqlite3.IntegrityError(f"no answer {answer}")

    def _set_provisional(
        self, answer: int, waiting: Sequence[int], provisional: str, *, shown: int = 0, kept: int = 0
    ) -> None:
        is_withdrawal = not waiting and not kept
        self._connection.execute(
            "INSERT INTO provisional (answer, tokens, text, shown, kept, is_corrected) VALUES (?, ?, ?, ?, ?, 0) "
            "ON CONFLICT (answer) DO UPDATE SET tokens = excluded.tokens, text = excluded.text, "
            "shown = shown + excluded.shown, kept = kept + excluded.kept, is_corrected = is_corrected OR "
            "(? AND (SELECT standing FROM answers WHERE key = excluded.answer) = 'unverified')",
            (answer, pack_tokens(waiting), provisional, shown, kept, is_withdrawal),
        )

    def _close(self, answer: int, finish: str, text: str, outcome: str) -> None:
        """Nothing about an answer will change."""
        self._merge(answer, text)
        self._connection.execute("UPDATE provisional SET tokens = x'', text = '' WHERE answer = ?", (answer,))
        self._set(answer, standing=AnswerStatus.DECIDED.value, finish=finish, outcome=outcome)
        self._note_end(answer)

    def _leave(self, answer: int, finish: str, provisional: str | None = None) -> None:
        """An answer is over for the user, and waits for a server."""
        provenance = self._merge(answer)
        length = len(provenance) - provenance.count(b"P")
        row = self._connection.execute("SELECT tokens FROM provisional WHERE answer = ?", (answer,)).fetchone()
        waiting = len(unpack_tokens(row[0])) if row is not None else 0
        if provisional is not None:
            self._connection.execute("UPDATE provisional SET text = ? WHERE answer = ?", (provisional, answer))
        stopped_at = length + waiting if finish == CANCELLED else None
        self._set(
            answer, standing=AnswerStatus.UNVERIFIED.value, finish=finish, decided_from=length, stopped_at=stopped_at
        )
        self._note_end(answer)

    def _merge(self, answer: int, text: str = "") -> bytes:
        """Makes one piece of all pieces, and of the rest of the text; the provenance of its tokens."""
        query = "SELECT tokens, provenance, text FROM pieces WHERE answer = ? ORDER BY number"
        pieces = self._connection.execute(query, (answer,)).fetchall()
        provenance = b"".join(piece[1] for piece in pieces)
        if len(pieces) > 1 or text:
            whole = b"".join(piece[0] for piece in pieces), provenance, "".join(piece[2] for piece in pieces) + text
            self._connection.execute("DELETE FROM pieces WHERE answer = ?", (answer,))
            self._connection.execute("INSERT INTO pieces VALUES (?, 0, ?, ?, ?)", (answer, *whole))
        return provenance

    def _note_end(self, answer: int) -> None:
        now = self._clock()
        self._connection.execute("UPDATE answers SET ended = ? WHERE key = ? AND ended IS NULL", (now, answer))
        self._connection.execute(
            "UPDATE conversations SET updated = ? WHERE id = (SELECT conversation FROM answers WHERE key = ?)",
            (now, answer),
        )


class Writers:
    """The conversations that this program writes. One of these a program: closing the file lets go of all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: set[str] = set()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from error

    def hold(self, conversation: str) -> None:
        if conversation in self._held:
            return
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(conversation))
        except (BlockingIOError, PermissionError):
            words = f"The conversation {conversation} is open in another chat."
            raise ConflictError(words, hint="Continue there, or close it there first.") from None
        except OSError as error:
            raise self._unusable(error) from error
        self._held.add(conversation)

    def release(self, conversation: str) -> None:
        if conversation in self._held:
            self._held.remove(conversation)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(conversation))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _unusable(self, error: OSError) -> HistoryError:
        return HistoryError(f"The history's file {self._path} cannot be used: {error.strerror or error}.")


def _place(conversation: str) -> int:
    """The byte that stands for a conversation; the file is empty, and need not have it."""
    return int.from_bytes(base64.b32decode(conversation.upper()))
