"""`moa-client history`: lists, shows, exports, searches and deletes the conversations that this device keeps.

No command needs a server, or that the model of a conversation is still served.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import ConfigError, OutputError
from moa_shared.programs.command_line import settings_options, text
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.output import write_output

from moa_client.settings import SECTION, ClientSettings

if TYPE_CHECKING:
    from moa_client.history.store import HistoryStore

LISTED, FOUND = 20, 20  # conversations, and hits of a search, that fit on a screen
_place = settings_options(
    ClientSettings, SECTION, [name for name in settings_of(ClientSettings) if name != "history_dir"]
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def history() -> None:
    """List, show, export, search and delete the conversations that this device keeps.

    ID is the name of a conversation as `list` shows it, the beginning of one, or `last`.
    """


@history.command("list")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1), default=LISTED, show_default=True, help="How many.")
@click.option("--all", "all_of_them", is_flag=True, help="List all.")
@click.option("--unverified", is_flag=True, help="Only those with an answer that a server is still to check.")
@_as_json
@_place
def list_(
    limit: int, all_of_them: bool, unverified: bool, as_json: bool, config_file: Path | None, **flags: Any
) -> None:
    """List conversations, the one last used first."""
    from moa_client.history.exports import list_json, list_table

    with _opened(config_file, flags) as store:
        found = store.list(None if all_of_them else limit, unverified_only=unverified)
        total = len(store.list(unverified_only=unverified))
    if as_json:
        write_output(list_json(found))
        return
    if not found:
        print("No answer waits for a server." if unverified else "No conversation is kept yet.", file=sys.stderr)
        return
    write_output(list_table(found))
    if total > len(found):
        print(f"{total - len(found)} more: --all lists them.", file=sys.stderr)


@history.command()
@click.argument("name", metavar="ID", type=text)
@_place
def show(name: str, config_file: Path | None, **flags: Any) -> None:
    """Print a conversation; text that no server has verified is marked."""
    from moa_client.history.exports import shown_conversation

    with _opened(config_file, flags) as store:
        write_output(shown_conversation(store.load(store.find(name))))


@history.command()
@click.argument("name", metavar="ID", type=text)
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write to FILE.")
@_place
def export(name: str, form: str, output: Path | None, config_file: Path | None, **flags: Any) -> None:
    """Print a conversation as Markdown, or all that is kept of it as JSON."""
    import json

    from moa_shared.programs.atomic import whole_file

    from moa_client.history.exports import as_json, markdown

    with _opened(config_file, flags) as store:
        stored = store.load(store.find(name))
    text = markdown(stored) if form == "markdown" else json.dumps(as_json(stored), indent=2) + "\n"
    if output is None:
        write_output(text)
        return
    try:
        with whole_file(output) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror or error}.") from error


@history.command()
@click.argument("names", metavar="ID...", nargs=-1, type=text)
@click.option("--all", "all_of_them", is_flag=True, help="Delete every conversation.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_place
def delete(names: tuple[str, ...], all_of_them: bool, yes: bool, config_file: Path | None, **flags: Any) -> None:
    """Delete conversations for good."""
    if bool(names) is all_of_them:
        raise ConfigError("Which conversations are to be deleted?", hint="Give IDs, or --all.")
    with _opened(config_file, flags) as store:
        found = store.identifiers() if all_of_them else sorted({store.find(name) for name in names})
        if not found:
            print("No conversation is kept.", file=sys.stderr)
            return
        count = f"{len(found)} conversation{'' if len(found) == 1 else 's'}"
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(f"This would delete {count}.", hint="Add --yes.")
            click.confirm(f"Delete {count} for good?", abort=True, err=True)
        store.delete(found)
    print(f"{count} deleted.", file=sys.stderr)


@history.command()
@click.argument("words", nargs=-1, required=True, type=text)
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1), default=FOUND, show_default=True, help="How many.")
@_as_json
@_place
def search(words: tuple[str, ...], limit: int, as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Find questions and answers that have all WORDS, or longer words that begin with them."""
    import json

    from moa_client.history.exports import shown_hit
    from moa_client.history.reading import END, START

    with _opened(config_file, flags) as store:
        hits = store.search(" ".join(words), limit)
    if as_json:
        shown = [
            {
                "id": hit.identifier,
                "title": hit.title,
                "question": hit.number,
                "asked": hit.asked,
                "snippet": hit.snippet.replace(START, "").replace(END, ""),
            }
            for hit in hits
        ]
        write_output(json.dumps(shown, indent=2) + "\n")
        return
    is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
    start, end = ("\x1b[1m", "\x1b[22m") if is_styled else ("", "")
    write_output("".join(shown_hit(hit, start, end) for hit in hits))
    if not hits:
        print("Nothing was found.", file=sys.stderr)


@contextmanager
def _opened(config_file: Path | None, flags: dict[str, Any]) -> Iterator[HistoryStore]:
    from moa_client.history.store import HistoryStore

    store = HistoryStore(load_settings(ClientSettings, SECTION, flags, config_file).history_dir)
    try:
        yield store
    finally:
        store.close()
