"""Adds, shows, chooses and removes the servers that a chat talks to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import write_output
from moa_shared.protocol.invitation import read_invitation

from moa_client.link.security import Security
from moa_client.servers.book import (
    FILES,
    ServerBook,
    ServerEntry,
    check_name,
    forget,
    keep_invitation,
    read_book,
    write_book,
)
from moa_client.servers.connecting import ask_servers, describe_server, list_json, list_table, security_of
from moa_client.settings import SECTION, ClientSettings, check_address


def add(name: str, address: str, given: dict[str, Any]) -> None:
    """Adds a server, or changes the one of that name. `given`: the other fields of its entry."""
    check_name(name)
    try:
        check_address(address)
    except ValueError as error:
        raise ConfigError(f"The address is {address!r}: {error}.", hint="") from None
    given |= {each: given[each].expanduser().absolute() for each in FILES if given[each] is not None}
    entry = ServerEntry(name, address, **given)
    # before the key is read, and an error now, rather than at the first question
    Security(entry.tls, key="key" if entry.key_file is not None else "", insecure=entry.insecure).check(address)
    book = read_book()
    security_of(entry).credentials()
    before = book.listed(name)
    book = book.add(entry)
    write_book(book)
    if before is not None:
        forget(before, entry)
        print(f"{name} is changed; it was {before.address}.", file=sys.stderr)
    print(_listed(name, book), file=sys.stderr)


def join(name: str, file: Path | None, *, replaces: bool) -> None:
    """Adds the server of an invitation, and tries it.

    Args:
        file: holds the invitation; None: it is asked for.
        replaces: the server that is listed by that name.
    """
    check_name(name)
    book = read_book()
    before = book.listed(name)
    if before is not None and not replaces:
        raise ConfigError(
            f"{name} is listed already, as {before.address}.",
            hint=f"Choose another name, or replace it and its key: moa-client servers join {name} --replace.",
        )
    invitation = read_invitation(_asked_invitation() if file is None else _read_text(file))
    entry = keep_invitation(name, invitation)
    book = book.add(entry)
    write_book(book)
    if before is not None:
        forget(before, entry)
    in_use = name in book.in_use
    print(_listed(name, book), file=sys.stderr)
    served = asyncio.run(describe_server(entry, load_settings(ClientSettings, SECTION, {})))
    where = f"It serves {served.identity.target_id} at {served.execution.level}."
    how = "moa-client chat" if in_use else f"moa-client chat --server {name}"
    print(f"{where} To talk to it: {how}", file=sys.stderr)


def show(*, as_json: bool) -> None:
    """Shows each server, and what it says now."""
    book = read_book()
    settings = load_settings(ClientSettings, SECTION, {})
    asked = asyncio.run(ask_servers(book, settings))
    if as_json:
        write_output(list_json(asked))
    elif asked:
        write_output(list_table(asked))
    else:
        print("No server is listed. Add one: moa-client servers add NAME HOST:PORT", file=sys.stderr)


def use(names: Sequence[str]) -> None:
    """Talks to these servers from now on."""
    write_book(read_book().use(names))
    print(f"In use: {', '.join(dict.fromkeys(names))}.", file=sys.stderr)


def remove(name: str) -> None:
    """Removes a server from the list, and the key that its invitation brought."""
    book = read_book()
    entry = book.find(name)
    write_book(book.remove(name))
    print(f"{name} is removed.", file=sys.stderr)
    forget(entry)


def _listed(name: str, book: ServerBook) -> str:
    """What a server that was added means for chats."""
    if name in book.in_use:
        return f"{name} is in use."
    together = f"moa-client servers use {' '.join(book.in_use)} {name}"
    return (
        f"{name} is listed; chats talk to {' and '.join(book.in_use)}. "
        f"For {name} alone: moa-client servers use {name}. "
        f"For {'both' if len(book.in_use) == 1 else 'all'}, where one takes over when another is lost: {together}"
    )


def _asked_invitation() -> str:
    """The line that the user pastes, or that comes through a pipe.

    A terminal by itself would take 4095 characters at most, and 1023 on some systems: an editor of lines takes all.
    """
    if not sys.stdin.isatty():
        return sys.stdin.read()
    from prompt_toolkit import PromptSession  # heavy, and for a terminal only
    from prompt_toolkit.output import create_output

    session = PromptSession[str]("Invitation: ", output=create_output(sys.stderr))
    try:
        return session.prompt()
    except (EOFError, KeyboardInterrupt):
        raise click.Abort from None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {file}.", hint="Name the one that holds the invitation.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{file} cannot be read: {why}.", hint="") from None
