"""`moa-client servers`: adds, shows, chooses and removes the servers that a chat talks to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError

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
    from moa_client.commands.actions import servers as actions

    actions.add(name, address, given)


@servers.command()
@click.argument("name")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@_no_keyring
@click.option("--replace", "replaces", is_flag=True, help="Replace the server that is listed as NAME, and its key.")
def join(name: str, file: Path | None, replaces: bool) -> None:
    """Add the server of an invitation, which is asked for now, read from a pipe or from FILE, and try it.

    `moa-server setup` and `moa-server invite` print invitations.
    """
    from moa_client.commands.actions import servers as actions

    actions.join(name, file, replaces=replaces)


@servers.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show(as_json: bool) -> None:
    """Show each server: address, TLS, whether it has a key, and, asked now, its model, round trip and load."""
    from moa_client.commands.actions import servers as actions

    actions.show(as_json=as_json)


@servers.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def use(names: tuple[str, ...]) -> None:
    """Talk to these servers, the nearest first; one goes on where another is lost."""
    from moa_client.commands.actions import servers as actions

    actions.use(names)


@servers.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a server from the list, and the key that its invitation brought."""
    from moa_client.commands.actions import servers as actions

    actions.remove(name)
