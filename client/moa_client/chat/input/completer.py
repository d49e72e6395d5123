"""Completes the commands of a chat and their values by Tab; a question that is being typed is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from moa_client.chat.commands.table import ALIASES, NAMES, resolve, values_of

Values = Callable[[str, tuple[str, ...]], Iterable[str]]


class CommandCompleter(Completer):
    """Completes the word before the cursor.

    Args:
        values: what may be typed next, of a command's name and what follows it already.
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
