"""Reads the history: one conversation, lists, searches; and how tokens, provenance and options are stored."""

from __future__ import annotations

import json
import sqlite3
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import DiskFullError, NotFoundError

from moa_client.conversation.options import AnswerOptions, options_from
from moa_client.history.database import transaction, translated
from moa_client.history.records import AnswerStatus, ConversationOrigin, Hit, StoredAnswer, StoredConversation, Summary

if TYPE_CHECKING:
    from moa_client.conversation.events import Provenance

# What a record does not name. Greedy: so were all answers before the model had a say.
_OFF = AnswerOptions(loop_guard=False).decided()
_TOKEN = next(code for code in "ILQ" if array(code).itemsize == 4)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Four bytes a token, least significant first."""
    return _swapped(array(_TOKEN, tokens)).tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """The tokens that `pack_tokens` packed."""
    return tuple(_swapped(array(_TOKEN, packed)))


def pack_provenance(provenance: Sequence[Provenance]) -> bytes:
    """One letter a token: see `Provenance`."""
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


START, END = "\x01", "\x02"  # around the words that were searched for, in a snippet
SNIPPET_WORDS = 16
LAST = "last"

_TITLE = (
    "CASE WHEN title != '' THEN title ELSE (SELECT question FROM answers WHERE conversation = id ORDER BY position "
    "LIMIT 1) END"
)
_OPEN = "(SELECT count(*) FROM answers WHERE conversation = id AND standing IN ('running', 'unverified'))"
_LIST = f"""SELECT id, {_TITLE}, created, updated, model, server,
    (SELECT count(*) FROM answers WHERE conversation = id) AS asked,
    (SELECT count(*) FROM answers WHERE conversation = id AND standing = 'unverified')
    FROM conversations WHERE asked > 0 AND (NOT ? OR {_OPEN} > 0) ORDER BY updated DESC, rowid DESC LIMIT ?"""
_ANSWERS = """SELECT key, question, options, standing, finish, outcome, decided_from, stopped_at, asked, ended, figures,
    coalesce(tokens, x''), coalesce(text, ''), coalesce(shown, 0), coalesce(kept, 0), coalesce(is_corrected, 0)
    FROM answers LEFT JOIN provisional ON answer = key WHERE conversation = ? ORDER BY position"""
_PIECES = """SELECT answer, tokens, provenance, text FROM pieces JOIN answers ON key = answer
    WHERE conversation = ? ORDER BY answer, number"""
_VERSIONS = "SELECT place, question, text FROM versions WHERE conversation = ? ORDER BY place, number"
_FOUND = f"""SELECT conversation, {_TITLE},
    (SELECT count(*) FROM answers AS before WHERE before.conversation = found.conversation
        AND before.position <= found.position),
    asked, {{snippet}}
    FROM words JOIN answers AS found ON key = words.rowid JOIN conversations ON id = conversation
    WHERE {{condition}} ORDER BY {{order}} LIMIT ?"""
_SNIPPET = f"snippet(words, -1, '{START}', '{END}', '...', {SNIPPET_WORDS})"


class HistoryReader:
    """Reads the history. `path`: of its file; `connection`: to it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with translated(self.path):
            return self._connection.execute(statement, values).fetchall()

    def load(self, conversation: str) -> StoredConversation:
        found = self._rows(
            "SELECT title, created, updated, model, target, tokenizer, execution, server, system FROM conversations "
            "WHERE id = ?",
            conversation,
        )
        if not found:
            raise _none(conversation)
        [(title, created, updated, *origin)] = found
        rows = self._rows(_PIECES, conversation)
        pieces = {key: list(each) for key, each in groupby(rows, lambda row: row[0])}
        rows = self._rows(_VERSIONS, conversation)
        versions = {place: tuple(row[1:] for row in each) for place, each in groupby(rows, lambda row: row[0])}
        answers = self._rows(_ANSWERS, conversation)
        stored = tuple(
            replace(_answer(answer, pieces.get(answer[0], [])), versions=versions.get(place, ()))
            for place, answer in enumerate(answers)
        )
        return StoredConversation(conversation, title, created, updated, ConversationOrigin(*origin), stored)

    def text_of(self, answer: int) -> str:
        """The text of an answer: committed, then provisional."""
        [(text,)] = self._rows(
            "SELECT coalesce((SELECT group_concat(text, '') FROM (SELECT text FROM pieces WHERE answer = ? "
            "ORDER BY number)), '') || coalesce((SELECT text FROM provisional WHERE answer = ?), '')",
            *(answer, answer),
        )
        return str(text)

    def list(self, limit: int | None = None, *, unverified_only: bool = False) -> Sequence[Summary]:
        """Conversations with a question, the one last written to first.

        At most `limit`, or all; `unverified_only`: those with an answer that a server is still to decide.
        """
        rows = self._rows(_LIST, unverified_only, -1 if limit is None else limit)
        return [Summary(name, _first_line(title), *rest) for name, title, *rest in rows]

    def identifiers(self) -> Sequence[str]:
        """All conversations, those without a question too."""
        return [row[0] for row in self._rows("SELECT id FROM conversations ORDER BY id")]

    def find(self, name: str) -> str:
        """The identifier that a user means: one, a prefix of just one, or `last`."""
        if name == LAST:
            if newest := self.list(1):
                return newest[0].identifier
            raise NotFoundError("No conversation is kept yet.", hint="")
        pattern = name.lower()
        query = "SELECT id FROM conversations WHERE substr(id, 1, ?) = ? ORDER BY id"
        found = [row[0] for row in self._rows(query, len(pattern), pattern)]
        if not found or not pattern:
            raise _none(name)
        if len(found) > 1:
            raise NotFoundError(
                f"{len(found)} conversations begin with {name}: {', '.join(found[:5])}{', ...' if found[5:] else ''}.",
                hint="Give more of the identifier.",
            )
        return str(found[0])

    def search(self, text: str, limit: int = 20) -> Sequence[Hit]:
        """Answers whose question or text has all these words (or longer ones that begin with them), best first."""
        with suppress(DiskFullError), transaction(self.path, self._connection) as connection:
            for (key,) in self._rows("SELECT key FROM answers WHERE standing IN ('running', 'unverified')"):
                connection.execute("UPDATE words SET answer = ? WHERE rowid = ?", (self.text_of(key), key))
        words = text.replace("\0", " ").split()  # which ends a text for SQLite, and is in none
        if not words:
            return []
        if any(map(_is_unspaced, text)):  # the index knows such a text as one word
            like = " AND ".join("(words.question || ' ' || words.answer) LIKE ? ESCAPE '\\'" for _ in words)
            query = _FOUND.format(snippet="words.question || ' ' || words.answer", condition=like, order="asked DESC")
            found = self._rows(query, *(f"%{_escaped(word)}%" for word in words), limit)
        else:
            match = " ".join(f'"{quoted}"*' for word in words if (quoted := word.replace('"', '""')))
            query = _FOUND.format(snippet=_SNIPPET, condition="words MATCH ?", order="bm25(words), asked DESC")
            found = self._rows(query, match, limit)
        return [
            Hit(name, _first_line(title), number, asked, snippet if START in snippet else _around(snippet, words[0]))
            for name, title, number, asked, snippet in found
        ]


def _answer(row: tuple[Any, ...], pieces: list[tuple[Any, ...]]) -> StoredAnswer:
    key, question, options, standing, finish, outcome, decided_from, stopped_at, asked, ended, figures, *standalone = (
        row
    )
    waiting, provisional, shown, kept, is_corrected = standalone
    return StoredAnswer(
        key=key,
        question=question,
        options=unpack_options(options),
        tokens=unpack_tokens(b"".join(piece[1] for piece in pieces)),
        provenance=b"".join(piece[2] for piece in pieces),
        text="".join(piece[3] for piece in pieces),
        waiting=unpack_tokens(waiting),
        provisional=provisional,
        standing=AnswerStatus(standing),
        finish=finish,
        outcome=outcome,
        decided_from=decided_from,
        stopped_at=stopped_at,
        shown=shown,
        kept=kept,
        is_corrected=bool(is_corrected),
        asked=asked,
        ended=ended,
        figures=json.loads(figures),
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _none(name: str) -> NotFoundError:
    return NotFoundError(
        f"There is no conversation {name}.", hint="`moa-client history list` shows those that are kept."
    )


def _is_unspaced(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words (Chinese, Japanese, Thai and the like)."""
    return "\u0e00" <= character <= "\u0eff" or "\u1000" <= character <= "\u109f" or "\u3040" <= character <= "\u9fff"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _around(text: str, word: str) -> str:
    at = max(0, text.lower().find(word.lower()))
    before, after = text[max(0, at - 20) : at], text[at + len(word) : at + len(word) + 40]
    dots = "..." if at > 20 else "", "..." if at + len(word) + 40 < len(text) else ""
    return f"{dots[0]}{before}{START}{text[at : at + len(word)]}{END}{after}{dots[1]}"
