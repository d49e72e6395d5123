"""`moa-client history`: lists, shows, exports, searches and deletes the conversations that this device keeps.

No command needs a server, or that the model of a conversation is still served.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import settings_options, text
from moa_shared.programs.config import load_settings, settings_of

from moa_client.settings import SECTION, ClientSettings

LISTED, FOUND = 20, 20  # conversations, and hits of a search, that fit on a screen
_OTHERS = [name for name in (*settings_of(ClientSettings), *ClientSettings.RETIRED) if name != "history_dir"]
_place = settings_options(ClientSettings, SECTION, _OTHERS)
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
    from moa_client.commands.actions import history as actions

    count = None if all_of_them else limit
    actions.show_list(_folder(config_file, flags), count, unverified=unverified, as_json=as_json)


@history.command()
@click.argument("name", metavar="ID", type=text)
@_place
def show(name: str, config_file: Path | None, **flags: Any) -> None:
    """Print a conversation; text that no server has verified is marked."""
    from moa_client.commands.actions import history as actions

    actions.show(_folder(config_file, flags), name)


@history.command()
@click.argument("name", metavar="ID", type=text)
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write to FILE.")
@_place
def export(name: str, form: str, output: Path | None, config_file: Path | None, **flags: Any) -> None:
    """Print a conversation as Markdown, or all that is kept of it as JSON."""
    from moa_client.commands.actions import history as actions

    actions.export(_folder(config_file, flags), name, form, output)


@history.command()
@click.argument("names", metavar="ID...", nargs=-1, type=text)
@click.option("--all", "all_of_them", is_flag=True, help="Delete every conversation, and all responses to programs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_place
def delete(names: tuple[str, ...], all_of_them: bool, yes: bool, config_file: Path | None, **flags: Any) -> None:
    """Delete conversations for good."""
    from moa_client.commands.actions import history as actions

    if bool(names) is all_of_them:
        raise ConfigError("Which conversations are to be deleted?", hint="Give IDs, or --all.")
    actions.delete(_folder(config_file, flags), None if all_of_them else names, is_agreed=yes)


@history.command()
@click.argument("words", nargs=-1, required=True, type=text)
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1), default=FOUND, show_default=True, help="How many.")
@_as_json
@_place
def search(words: tuple[str, ...], limit: int, as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Find questions and answers that have all WORDS, the newest first."""
    from moa_client.commands.actions import history as actions

    actions.search(_folder(config_file, flags), words, limit, as_json=as_json)


def _folder(config_file: Path | None, flags: Mapping[str, Any]) -> Path | None:
    return load_settings(ClientSettings, SECTION, flags, config_file).history_dir
