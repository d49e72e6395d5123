"""Lists, shows, exports, searches and deletes the conversations that this device keeps."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from moa_shared.errors import ConfigError, OutputError
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.entry import write_output

from moa_client.history import exports
from moa_client.history.reading import END, START
from moa_client.history.store import HistoryStore


def show_list(folder: Path | None, limit: int | None, *, unverified: bool, as_json: bool) -> None:
    """Lists conversations, the one last used first. `limit`: how many, at most; None: all."""
    with _opened(folder) as store:
        found = store.list(limit, unverified_only=unverified)
        total = len(store.list(unverified_only=unverified))
    if as_json:
        write_output(exports.json_of(found))
        return
    if not found:
        print("No answer waits for a server." if unverified else "No conversation is kept yet.", file=sys.stderr)
        return
    write_output(exports.list_table(found))
    if total > len(found):
        print(f"{total - len(found)} more: --all lists them.", file=sys.stderr)


def show(folder: Path | None, name: str) -> None:
    """Prints a conversation."""
    with _opened(folder) as store:
        write_output(exports.shown_conversation(store.load(store.find(name))))


def export(folder: Path | None, name: str, form: str, output: Path | None) -> None:
    """Writes a conversation as Markdown, or all that is kept of it as JSON."""
    with _opened(folder) as store:
        stored = store.load(store.find(name))
    text = exports.markdown(stored) if form == "markdown" else json.dumps(exports.as_json(stored), indent=2) + "\n"
    if output is None:
        write_output(text)
        return
    try:
        with whole_file(output) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror or error}.") from error


def delete(folder: Path | None, names: Sequence[str] | None, *, is_agreed: bool) -> None:
    """Deletes conversations for good.

    `names`: None: all of them, and all responses that programs have asked to keep.
    """
    with _opened(folder) as store:
        found = store.identifiers() if names is None else sorted({store.find(name) for name in names})
        responses = store.responses.count() if names is None else 0
        if not found and not responses:
            print("No conversation is kept.", file=sys.stderr)
            return
        count = f"{len(found)} conversation{'' if len(found) == 1 else 's'}"
        if responses:
            count += f" and {responses} response{'' if responses == 1 else 's'} to programs"
        if not is_agreed:
            if not sys.stdin.isatty():
                raise ConfigError(f"This would delete {count}.", hint="Add --yes.")
            click.confirm(f"Delete {count} for good?", abort=True, err=True)
        store.delete(found)
        if responses:
            store.responses.delete_all()
    print(f"{count} deleted.", file=sys.stderr)


def search(folder: Path | None, words: Sequence[str], limit: int, *, as_json: bool) -> None:
    """Finds questions and answers that have all words."""
    with _opened(folder) as store:
        hits = store.search(" ".join(words), limit)
    if as_json:
        plain = [replace(hit, snippet=hit.snippet.replace(START, "").replace(END, "")) for hit in hits]
        write_output(exports.json_of(plain))
        return
    is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
    start, end = ("\x1b[1m", "\x1b[22m") if is_styled else ("", "")
    write_output("".join(exports.shown_hit(hit, start, end) for hit in hits))
    if not hits:
        print("Nothing was found.", file=sys.stderr)


@contextmanager
def _opened(folder: Path | None) -> Iterator[HistoryStore]:
    store = HistoryStore(folder)
    try:
        yield store
    finally:
        store.close()
