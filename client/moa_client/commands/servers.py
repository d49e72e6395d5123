"""`moa-client servers`: adds, shows, chooses and removes the servers that a chat talks to."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import write_output

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
from moa_client.settings import SECTION, ClientSettings, check_address

FILE = click.Path(path_type=Path)


def _refuse_keyring(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given:
        raise ConfigError("--key-keyring is gone: keys are kept in files.", hint="servers add takes --key-file FILE.")


_no_keyring = click.option(
    "--key-keyring", is_flag=True, hidden=True, expose_value=False, is_eager=True, callback=_refuse_keyring
)


@click.group()
def servers() -> None:
    """Name servers, with their keys and certificates, and choose those that a chat talks to."""


@servers.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--tls", is_flag=True, help="Encrypt, and check the server's certificate with this system's authorities.")
@click.option("--tls-ca", metavar="FILE", type=FILE, help="CA certificates (PEM); implies --tls.")
@click.option(
    "--tls-cert", metavar="FILE", type=FILE, help="Show this certificate, in PEM, to a server that wants one."
)
@click.option("--tls-key", metavar="FILE", type=FILE, help="Its private key; others must not be able to read it.")
@click.option("--insecure", is_flag=True, help="Talk to a server beyond this device without encryption.")
@click.option("--key-file", metavar="FILE", type=FILE, help="FILE holds the API key.")
@_no_keyring
def add(name: str, address: str, **given: Any) -> None:
    """Add a server, or change the one of that name; the first one is in use."""
    from moa_client.link.security import Security
    from moa_client.servers.connecting import security_of

    check_name(name)
    try:
        check_address(address)
    except ValueError as error:
        raise ConfigError(f"The address is {address!r}: {error}.", hint="") from None
    given |= {each: given[each].expanduser().absolute() for each in FILES if given[each] is not None}
    entry = ServerEntry(name, address, **given)
    # before the key is read, and an error now, rather than at the first question
    Security(entry.tls, key="key" if entry.key_file is not None else "", insecure=entry.insecure).check(address)
    before = read_book().listed(name)
    security_of(entry).credentials()
    _list(entry, before, f"{name} is changed; it was {before.address}.\n" if before is not None else "")


@servers.command()
@click.argument("name")
@_no_keyring
@click.option("--replace", "replaces", is_flag=True, help="Replace the server that is listed as NAME, and its key.")
def join(name: str, replaces: bool) -> None:
    """Add the server of an invitation, which is asked for now or read from a pipe, and try it.

    `moa-server setup` and `moa-server invite` print invitations.
    """
    from moa_shared.programs.addresses import read_invitation

    from moa_client.servers.connecting import describe_server

    check_name(name)
    before = read_book().listed(name)
    if before is not None and not replaces:
        raise ConfigError(
            f"{name} is listed already, as {before.address}.",
            hint=f"Choose another name, or replace it and its key: moa-client servers join {name} --replace.",
        )
    invitation = read_invitation(_asked_invitation())
    entry = keep_invitation(name, invitation)
    book = _list(entry, before)
    served = asyncio.run(describe_server(entry, load_settings(ClientSettings, SECTION, {})))
    where = f"It serves {served.identity.target_id} at {served.execution.level}."
    how = "moa-client chat" if name in book.in_use else f"moa-client chat --server {name}"
    print(f"{where} To talk to it: {how}", file=sys.stderr)


@servers.command("list")
def show() -> None:
    """Show each server: address, TLS, whether it has a key, and, asked now, its model, round trip and load."""
    from moa_client.servers.connecting import list_servers

    book = read_book()
    if book.entries:
        write_output(asyncio.run(list_servers(book, load_settings(ClientSettings, SECTION, {}))))
    else:
        print("No server is listed. Add one: moa-client servers add NAME HOST:PORT", file=sys.stderr)


@servers.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def use(names: tuple[str, ...]) -> None:
    """Talk to these servers, the nearest first; one goes on where another is lost."""
    write_book(read_book().use(names))
    print(f"In use: {', '.join(dict.fromkeys(names))}.", file=sys.stderr)


@servers.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a server from the list, and the key that its invitation brought."""
    book = read_book()
    entry = book.find(name)
    write_book(book.remove(name))
    print(f"{name} is removed.", file=sys.stderr)
    forget(entry)


def _list(entry: ServerEntry, before: ServerEntry | None, words: str = "") -> ServerBook:
    """Lists a server in the place of the one `before`, and says what that means for chats, after these words."""
    name, book = entry.name, read_book().add(entry)
    write_book(book)
    if before is not None:
        forget(before, entry)
    if name in book.in_use:
        words += f"{name} is in use."
    else:
        together = f"moa-client servers use {' '.join(book.in_use)} {name}"
        words += (
            f"{name} is listed; chats talk to {' and '.join(book.in_use)}, and with /model {name} to its model. "
            f"For {name} alone: moa-client servers use {name}. "
            f"For {'both' if len(book.in_use) == 1 else 'all'}, where one takes over when another is lost: {together}"
        )
    print(words, file=sys.stderr)
    return book


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
