"""What the history holds of conversations, in plain values, and how it is read: one conversation, lists, searches.

Imports nothing heavy.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from moa_shared.errors import NotFoundError

from moa_client.conversation.options import AnswerOptions, options_from
from moa_client.history.database import Database

if TYPE_CHECKING:
    from moa_client.conversation.events import Provenance


class AnswerStatus(Enum):
    RUNNING = "running"  # or the program was killed while it was
    UNVERIFIED = "unverified"  # it ended without the server, which has not decided it yet
    DECIDED = "decided"  # nothing about it will change
    REFUSED = "refused"  # the server will not verify it; it is no part of the conversation

    @property
    def is_open(self) -> bool:
        return self in (AnswerStatus.RUNNING, AnswerStatus.UNVERIFIED)


@dataclass(frozen=True, slots=True)
class ConversationOrigin:
    model: str
    target: bytes = b""  # fingerprint of its weights
    tokenizer: bytes = b""  # hash of its tokenizer
    execution: str = ""  # level, such as int8; empty: no server has reported it
    server: str = ""  # address of the newest server
    system: str | None = None  # the system prompt; None: the model's own


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One question and what is known of its answer. `key` names it in the history; times in seconds since 1970."""

    key: int
    question: str
    options: AnswerOptions
    # Committed: the question's (none before a server has read it, or the answer has begun alone), then the answer's;
    # of each, the first letter of its `Provenance`.
    tokens: Sequence[int] = ()
    provenance: bytes = b""
    text: str = ""  # of the answer, committed
    waiting: Sequence[int] = ()  # provisional tokens after the committed ones
    provisional: str = ""  # their text
    standing: AnswerStatus = AnswerStatus.RUNNING
    finish: str = ""  # why it ended, as in the events for programs ("end_of_text"); empty: it has not
    outcome: str = ""  # of an answer that had ended without the server ("confirmed"); empty: it did not, or is open
    decided_from: int = 0  # committed tokens of the answer when it ended without the server
    stopped_at: int | None = None  # tokens of the answer where the user stopped it without the server; None: not so
    shown: int = 0  # tokens that were shown as provisional
    kept: int = 0  # those of them that are committed
    is_corrected: bool = False  # provisional text was withdrawn after it had ended
    asked: float = 0.0
    ended: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    versions: tuple[tuple[str, str], ...] = ()  # question and text of those in whose place it was asked, oldest first

    @property
    def question_tokens(self) -> int:
        return len(self.provenance) - len(self.provenance.lstrip(b"P"))

    @property
    def answer_tokens(self) -> int:
        return len(self.tokens) - self.question_tokens

    @property
    def is_part(self) -> bool:
        """Whether the tokens that continue from here have it: not, if it got no answer at all, or another model's."""
        return not self.options.model and (bool(self.tokens) or self.standing.is_open)


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """All that is kept of a conversation; times in seconds since 1970."""

    identifier: str
    title: str
    created: float
    updated: float
    origin: ConversationOrigin
    answers: tuple[StoredAnswer, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in a list. `title`: as set, else the first line of the first question."""

    identifier: str
    title: str
    created: float
    updated: float
    model: str
    server: str
    answers: int  # questions
    unverified: int  # answers that a server is still to decide


@dataclass(frozen=True, slots=True)
class Hit:
    """An answer that a search has found, by its number in its conversation, from 1.

    `snippet`: a part of question or answer, around the first word that was searched for.
    """

    identifier: str
    title: str
    number: int
    asked: float
    snippet: str


BEFORE, AFTER = 40, 80  # characters of a snippet
LAST = "last"
# What a record does not name. Greedy: so were all answers before the model had a say.
_OFF = AnswerOptions(loop_guard=False).decided()
_TOKEN = next(code for code in "ILQ" if array(code).itemsize == 4)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Four bytes a token, least significant first."""
    return _swapped(array(_TOKEN, tokens)).tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    return tuple(_swapped(array(_TOKEN, packed)))


def pack_provenance(provenance: Sequence[Provenance]) -> bytes:
    return "".join(each.letter for each in provenance).encode()


def pack_options(options: AnswerOptions) -> str:
    off = _OFF.fields()
    return json.dumps({name: value for name, value in options.fields().items() if value != off.get(name)})


def unpack_options(packed: str) -> AnswerOptions:
    """The options that `pack_options` packed; an unknown one, of a newer version, is left out."""
    known = {name: value for name, value in json.loads(packed).items() if name in AnswerOptions.__dataclass_fields__}
    return options_from(_OFF.fields() | known)


def _swapped(tokens: array[int]) -> array[int]:
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


_TITLE = (
    "CASE WHEN title != '' THEN title ELSE (SELECT question FROM answers WHERE conversation = id ORDER BY position "
    "LIMIT 1) END"
)
_OPEN = "(SELECT count(*) FROM answers WHERE conversation = id AND standing IN ('running', 'unverified'))"
_LIST = f"""SELECT id, {_TITLE}, created, updated, model, server,
    (SELECT count(*) FROM answers WHERE conversation = id) AS asked,
    (SELECT count(*) FROM answers WHERE conversation = id AND standing = 'unverified')
    FROM conversations WHERE asked > 0 AND (NOT ? OR {_OPEN} > 0) ORDER BY updated DESC, rowid DESC LIMIT ?"""
_COLUMNS = (
    *("key", "question", "options", "standing", "finish", "outcome", "decided_from", "stopped_at"),
    *("asked", "ended", "figures", "waiting", "provisional", "shown", "kept", "is_corrected"),
)
_ANSWERS = """SELECT key, question, options, standing, finish, outcome, decided_from, stopped_at, asked, ended, figures,
    coalesce(tokens, x''), coalesce(text, ''), coalesce(shown, 0), coalesce(kept, 0), coalesce(is_corrected, 0)
    FROM answers LEFT JOIN provisional ON answer = key WHERE conversation = ? ORDER BY position"""
_PIECES = """SELECT answer, tokens, provenance, text FROM pieces JOIN answers ON key = answer
    WHERE conversation = ? ORDER BY answer, number"""
_VERSIONS = "SELECT place, question, text FROM versions WHERE conversation = ? ORDER BY place, number"
# The text of an answer: committed, then provisional.
TEXT = """(SELECT coalesce(group_concat(text, ''), '') FROM (SELECT text FROM pieces WHERE answer = key
    ORDER BY number)) || coalesce((SELECT text FROM provisional WHERE answer = key), '')"""
_SAID = f"""SELECT conversation, {_TITLE}, (SELECT count(*) FROM answers AS before
    WHERE before.conversation = found.conversation AND before.position <= found.position), asked, question, {TEXT}
    FROM answers AS found JOIN conversations ON id = conversation ORDER BY asked DESC"""


class HistoryReader:
    def __init__(self, database: Database) -> None:
        self.database = database

    def load(self, conversation: str) -> StoredConversation:
        rows = self.database.rows
        found = rows(
            "SELECT title, created, updated, model, target, tokenizer, execution, server, system FROM conversations "
            "WHERE id = ?",
            conversation,
        )
        if not found:
            raise _none(conversation)
        [(title, created, updated, *origin)] = found
        pieces = {key: list(each) for key, each in groupby(rows(_PIECES, conversation), lambda row: row[0])}
        versions = {
            place: tuple(row[1:] for row in each)
            for place, each in groupby(rows(_VERSIONS, conversation), lambda row: row[0])
        }
        stored = tuple(
            _answer(answer, pieces.get(answer[0], []), versions.get(place, ()))
            for place, answer in enumerate(rows(_ANSWERS, conversation))
        )
        return StoredConversation(conversation, title, created, updated, ConversationOrigin(*origin), stored)

    def list(self, limit: int | None = None, *, unverified_only: bool = False) -> Sequence[Summary]:
        """Conversations with a question, the one last written to first.

        At most `limit`, or all; `unverified_only`: those with an answer that a server is still to decide.
        """
        rows = self.database.rows(_LIST, unverified_only, -1 if limit is None else limit)
        return [Summary(name, _first_line(title), *rest) for name, title, *rest in rows]

    def identifiers(self) -> Sequence[str]:
        """All conversations, those without a question too."""
        return [row[0] for row in self.database.rows("SELECT id FROM conversations ORDER BY id")]

    def find(self, name: str) -> str:
        """The identifier that a user means: one, a prefix of just one, or `last`."""
        if name == LAST:
            if newest := self.list(1):
                return newest[0].identifier
            raise NotFoundError("No conversation is kept yet.", hint="")
        found = [each for each in self.identifiers() if name and each.startswith(name.lower())]
        if not found:
            raise _none(name)
        if len(found) > 1:
            raise NotFoundError(
                f"{len(found)} conversations begin with {name}: {', '.join(found[:5])}{', ...' if found[5:] else ''}.",
                hint="Give more of the identifier.",
            )
        return found[0]

    def search(self, text: str, limit: int = 20) -> Sequence[Hit]:
        """Answers whose question or text has all these words, as they are or within longer ones, the newest first.

        Neither case nor accents count.
        """
        words = _plain(text).split()
        hits: list[Hit] = []
        with self.database.translated():
            for name, title, number, asked, question, answer in self.database.connection.execute(_SAID):
                said = f"{question} {answer}"
                plain = _plain(said)
                if words and all(word in plain for word in words):
                    at = plain.index(words[0])
                    hits.append(Hit(name, _first_line(title), number, asked, _snippet(said, at, at + len(words[0]))))
                if not words or len(hits) == limit:
                    break
        return hits


class _PlainLetters(dict[int, int]):
    """Each letter in lower case and without accents, one for one, so that places in a text stay."""

    def __missing__(self, code: int) -> int:
        self[code] = ord(unicodedata.normalize("NFD", chr(code).lower())[0])
        return self[code]


_PLAIN = _PlainLetters()


def _plain(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_PLAIN)


def _snippet(text: str, at: int, end: int) -> str:
    start = max(0, at - BEFORE)
    return f"{'...' * (start > 0)}{text[start : end + AFTER]}{'...' * (end + AFTER < len(text))}"


def _answer(row: Sequence[Any], pieces: list[tuple[Any, ...]], versions: tuple[tuple[str, str], ...]) -> StoredAnswer:
    fields = dict(zip(_COLUMNS, row, strict=True))
    fields |= {
        "options": unpack_options(fields["options"]),
        "standing": AnswerStatus(fields["standing"]),
        "figures": json.loads(fields["figures"]),
        "waiting": unpack_tokens(fields["waiting"]),
        "is_corrected": bool(fields["is_corrected"]),
        "tokens": unpack_tokens(b"".join(piece[1] for piece in pieces)),
        "provenance": b"".join(piece[2] for piece in pieces),
        "text": "".join(piece[3] for piece in pieces),
    }
    return StoredAnswer(**fields, versions=versions)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _none(name: str) -> NotFoundError:
    return NotFoundError(
        f"There is no conversation {name}.", hint="`moa-client history list` shows those that are kept."
    )
