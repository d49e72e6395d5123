"""What a user types: commands are completed by Tab, and earlier questions come back by the arrow keys and Ctrl-R.

State: the questions of this chat and, if they are kept, those of a file of the user's alone. What cannot be read or
written is left out: it is no reason to end a chat.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from moa_shared.programs.atomic import whole_file
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History

from moa_client.chat.commands.table import ALIASES, NAMES, resolve, values_of

Values = Callable[[str, tuple[str, ...]], Iterable[str]]


class CommandCompleter(Completer):
    """Completes the word before the cursor.

    `values`: what may be typed next, of a command's name and what follows it already.
    """

    def __init__(self, values: Values = values_of) -> None:
        self._values = values
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in document.text:
            return
        typed, *before = text[1:].split(" ")
        if not before:
            known: Iterable[str] = NAMES if any(name.startswith(typed) for name in NAMES) else ALIASES
            begun = typed
        elif resolve(typed) == "file":
            path = text.partition(" ")[2]
            yield from self._paths.get_completions(Document(path, len(path)), complete_event)
            return
        else:
            name, begun = resolve(typed), before.pop()
            known = self._values(name, tuple(filter(None, before))) if name is not None else ()
        for word in known:
            if word.startswith(begun):
                yield Completion(word, -len(begun))


MOST_BYTES = 1 << 18  # some thousand questions
KEPT_BYTES = 3 << 16  # of a longer file, its newest; not each start should write it again


def default_path() -> Path:
    import platformdirs

    return platformdirs.user_state_path("moa", appauthor=False) / "questions"


class QuestionHistory(History):
    """Holds whole questions: the lines that prompts hand in are not kept by themselves.

    `path`: where they are kept; None: nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path
        self._file = FileHistory(str(path)) if path is not None else None
        if path is not None:
            with suppress(OSError):
                _shorten(path)

    def append_string(self, string: str) -> None:
        """Keeps nothing: a line may be a part of a question."""

    def keep(self, question: str) -> None:
        """Keeps a whole question, unless it is the newest one."""
        if question.strip() and self.get_strings()[-1:] != [question]:
            super().append_string(question)

    def load_history_strings(self) -> Iterable[str]:
        if self._file is None:
            return
        with suppress(OSError):
            yield from self._file.load_history_strings()

    def store_string(self, string: str) -> None:
        if self._file is None or self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._file.store_string(string)


def _shorten(path: Path) -> None:
    if path.stat().st_size <= MOST_BYTES:
        return
    newest = path.read_bytes()[-KEPT_BYTES:]
    _, mark, rest = newest.partition(b"\n# ")  # an entry begins there
    with whole_file(path, several_writers=True) as partial:
        partial.chmod(0o600)
        partial.write_bytes(mark + rest)
