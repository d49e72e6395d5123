"""The tables of the history, and how older files become newer ones.

Invariant: a migration never changes once it was released; a new one is appended, and `user_version` counts them.
"""

from __future__ import annotations

APPLICATION = 0x6D6F6168  # "moah": marks a file as ours

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            model TEXT NOT NULL,
            target BLOB NOT NULL,
            tokenizer BLOB NOT NULL,
            execution TEXT NOT NULL,
            server TEXT NOT NULL,
            system TEXT
        )""",
        "CREATE INDEX newest ON conversations (updated)",
        """CREATE TABLE answers (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
            position INTEGER NOT NULL,
            question TEXT NOT NULL,
            options TEXT NOT NULL,
            standing TEXT NOT NULL,
            finish TEXT NOT NULL DEFAULT '',
            outcome TEXT NOT NULL DEFAULT '',
            decided_from INTEGER NOT NULL DEFAULT 0,
            stopped_at INTEGER,
            asked REAL NOT NULL,
            ended REAL,
            figures TEXT NOT NULL DEFAULT '{}',
            UNIQUE (conversation, position)
        )""",
        "CREATE INDEX open_answers ON answers (standing) WHERE standing IN ('running', 'unverified')",
        # Committed text comes in pieces: appending one must not cost more the longer the answer is.
        """CREATE TABLE pieces (
            answer INTEGER NOT NULL REFERENCES answers ON DELETE CASCADE,
            number INTEGER NOT NULL,
            tokens BLOB NOT NULL,
            provenance BLOB NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (answer, number)
        ) WITHOUT ROWID""",
        """CREATE TABLE provisional (
            answer INTEGER PRIMARY KEY REFERENCES answers ON DELETE CASCADE,
            tokens BLOB NOT NULL,
            text TEXT NOT NULL,
            shown INTEGER NOT NULL,
            kept INTEGER NOT NULL,
            is_corrected INTEGER NOT NULL
        )""",
        "CREATE VIRTUAL TABLE words USING fts5 (question, answer, tokenize = 'unicode61 remove_diacritics 2')",
        "CREATE TRIGGER forget_words AFTER DELETE ON answers BEGIN DELETE FROM words WHERE rowid = old.key; END",
    ),
    (
        # Of programs (docs/api.md), as JSON. What continues another one names it; that one may be deleted first.
        """CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            previous TEXT,
            created REAL NOT NULL,
            used REAL NOT NULL,
            size INTEGER NOT NULL,
            input TEXT NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX responses_by_use ON responses (used, size)",
    ),
    (
        # Of answers in whose place others were asked for: what was shown, by the number of answers before them.
        """CREATE TABLE versions (
            conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
            place INTEGER NOT NULL,
            number INTEGER NOT NULL,
            question TEXT NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (conversation, place, number)
        ) WITHOUT ROWID""",
    ),
)
