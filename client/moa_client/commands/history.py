"""`moa-client history`: lists, shows, exports, searches and deletes the conversations that this device keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import text
from moa_shared.programs.entry import write_output

if TYPE_CHECKING:
    from moa_client.history.store import HistoryStore

_limit = click.option("-n", "--limit", metavar="N", type=click.IntRange(1), default=20, show_default=True)


@click.group()
def history() -> None:
    """List, show, export, search and delete the conversations that this device keeps.

    ID is the name of a conversation as `list` shows it, the beginning of one, or `last`.
    """


@history.command("list")
@_limit
@click.option("--all", "all_of_them", is_flag=True, help="List all.")
def list_(limit: int, all_of_them: bool) -> None:
    """List conversations, the one last used first."""
    from moa_client.history.exports import list_table

    with opened() as store:
        every = store.list()
    found = every if all_of_them else every[:limit]
    if not found:
        print("No conversation is kept yet.", file=sys.stderr)
    else:
        write_output(list_table(found))
        if len(every) > len(found):
            print(f"{len(every) - len(found)} more: --all lists them.", file=sys.stderr)


@history.command()
@click.argument("name", metavar="ID", type=text)
def show(name: str) -> None:
    """Print a conversation; text that no server has verified is marked."""
    from moa_client.history.exports import shown_conversation

    with opened() as store:
        write_output(shown_conversation(store.load(store.find(name))))


@history.command()
@click.argument("name", metavar="ID", type=text)
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
def export(name: str, form: str) -> None:
    """Print a conversation as Markdown, or all that is kept of it as JSON."""
    from moa_client.history.exports import as_json, markdown

    with opened() as store:
        stored = store.load(store.find(name))
    write_output(markdown(stored) if form == "markdown" else json.dumps(as_json(stored), indent=2) + "\n")


@history.command()
@click.argument("names", metavar="ID...", nargs=-1, type=text)
@click.option("--all", "all_of_them", is_flag=True, help="Delete every conversation, and all responses to programs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(names: tuple[str, ...], all_of_them: bool, yes: bool) -> None:
    """Delete conversations for good."""
    if bool(names) is all_of_them:
        raise ConfigError("Which conversations are to be deleted?", hint="Give IDs, or --all.")
    with opened() as store:
        found = store.identifiers() if all_of_them else sorted({store.find(name) for name in names})
        responses = store.responses.count() if all_of_them else 0
        if not found and not responses:
            print("No conversation is kept.", file=sys.stderr)
            return
        count = f"{len(found)} conversation{'' if len(found) == 1 else 's'}"
        if responses:
            count += f" and {responses} response{'' if responses == 1 else 's'} to programs"
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(f"This would delete {count}.", hint="Add --yes.")
            click.confirm(f"Delete {count} for good?", abort=True, err=True)
        store.delete(found)
        if responses:
            store.responses.delete_all()
    print(f"{count} deleted.", file=sys.stderr)


@history.command()
@click.argument("words", nargs=-1, required=True, type=text)
@_limit
def search(words: tuple[str, ...], limit: int) -> None:
    """Find questions and answers that have all WORDS, the newest first."""
    from moa_client.history.exports import shown_hit

    with opened() as store:
        hits = store.search(" ".join(words), limit)
    write_output("".join(map(shown_hit, hits)))
    if not hits:
        print("Nothing was found.", file=sys.stderr)


@contextmanager
def opened() -> Iterator[HistoryStore]:
    from moa_client.history.store import HistoryStore

    store = HistoryStore()
    try:
        yield store
    finally:
        store.close()
