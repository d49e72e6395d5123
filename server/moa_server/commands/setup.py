"""`moa-server setup`: a certificate, a key and settings for a server that others reach, in one command."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import config_option, table
from moa_shared.programs.entry import write_output

from moa_server.access.limits import CallerLimits, Right
from moa_server.settings import METRICS_PORT, SECTION, ServerSettings, usual_folder


@click.command()
@click.argument("hosts", metavar="HOST...", nargs=-1)
@click.option("--folder", metavar="FOLDER", type=click.Path(path_type=Path), help="For the files.  [the user's own]")
@click.option("--port", type=click.IntRange(1, 65535), default=50051, help="Port to listen on.  [default: 50051]")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=METRICS_PORT, show_default=True,
    help="Port for metrics and health, for this machine only; 0: any free one.",
)  # fmt: skip
@click.option("--renew", "renews", is_flag=True, help="Only make a new certificate, of the same authority.")
def setup(hosts: tuple[str, ...], folder: Path | None, port: int, metrics_port: int, renews: bool) -> None:
    """Make all that a server needs to be reached as HOST by others, and print an invitation for a device.

    HOST is a name or an IP address of this machine as devices know it; several may be given. The folder gets an
    authority of its own (10 years), a certificate for the server (1 year), a key for one device, and server.toml for
    `moa-server serve --config`. What is there is never overwritten; --renew replaces the certificate alone.
    """
    from moa_server.setting_up import FIRST_DEVICE, SetupFolder, invitation_with, invitation_words, renew, set_up

    now = datetime.now(UTC)
    if folder is None:
        in_force = ServerSettings.usual_file() if renews else None
        folder = in_force.parent if in_force is not None else usual_folder()
    where = SetupFolder(folder.expanduser().absolute())
    if renews:
        names = ", ".join(renew(where, hosts, now))
        click.echo(f"The certificate for {names} is valid for a year. A running server takes it by itself.", err=True)
        return
    if not hosts:
        hint = "Name it as they reach it: moa-server setup gpu.example, or an IP address."
        raise ConfigError("Devices must know this machine by some name.", hint=hint)
    key = set_up(where, hosts, port, now, metrics_port)
    write_output(f"{invitation_with(where, key).line()}\n")
    click.echo(invitation_words(FIRST_DEVICE, where.settings, None), nl=False, err=True)
    click.echo(f"To serve: moa-server serve --config {where.settings}", err=True)


@click.command()
@click.argument("name")
@click.option("--expires", metavar="DATE|DAYS", help="Last day, such as 2027-01-31, or days from now.  [never]")
@config_option(ServerSettings, SECTION)
def invite(name: str, expires: str | None, config_file: Path | None) -> None:
    """Make a key called NAME for another device, and print an invitation with it.

    A running server accepts it within a second. The invitation is a secret that works on any number of devices until
    `moa-server keys revoke NAME` takes it back, or it expires.
    """
    from moa_server.access.keys import read_expiry
    from moa_server.setting_up import SetupFolder, add_key, find_key_file, invitation_with, invitation_words

    if config_file is None:
        hint = "Make one: moa-server setup HOST. Or name your server's: --config FILE."
        raise ConfigError("No configuration of a server was found.", hint=hint)
    whole, now = config_file.expanduser().absolute(), datetime.now(UTC)
    where = SetupFolder(whole.parent, whole.name)
    until = read_expiry(expires, now)
    invitation_with(where, "")  # an error now, not after the key is made
    keys_file, _ = find_key_file(whole)
    key = add_key(keys_file, name, now, until)
    write_output(f"{invitation_with(where, key).line()}\n")
    click.echo(f"The key {name} is in {keys_file}.", err=True)
    click.echo(invitation_words(name, where.settings, until), nl=False, err=True)


file_option = click.option(
    "--keys-file", metavar="FILE", type=click.Path(path_type=Path),
    help="The file of keys.  [default: the one that the server's configuration names]",
)  # fmt: skip
server_config = config_option(ServerSettings, SECTION)
limit = click.IntRange(min=1)


@click.group()
def keys() -> None:
    """Make, list and revoke API keys. A running server takes changes in within a second."""


@keys.command()
@click.argument("name")
@click.option("--rights", metavar="LIST", default="converse,generate,fetch", show_default=True, help="What it permits.")
@click.option("--sessions", type=limit, metavar="N", help="Sessions that it may have at once.  [as the server allows]")
@click.option("--kv-bytes", type=limit, metavar="BYTES", help="Keys and values of its answers.  [as the server allows]")
@click.option("--tokens-per-minute", type=limit, metavar="N", help="Read and written.  [as the server's own limit]")
@click.option("--requests-per-minute", type=limit, metavar="N", help="Calls and questions.  [as the server's own]")
@click.option("--expires", metavar="DATE|DAYS", help="Last day, such as 2027-01-31, or days from now.  [never]")
@file_option
@server_config
def add(
    name: str, rights: str, expires: str | None, keys_file: Path | None, config_file: Path | None, **limits: int | None
) -> None:
    """Make a key called NAME and print it: it is shown this once, and the file has only its hash."""
    from moa_server.access.keys import read_expiry
    from moa_server.setting_up import add_key

    now, path = datetime.now(UTC), _path(keys_file, config_file)
    given = CallerLimits(**{limit: value for limit, value in limits.items() if value})
    known = {right.value: right for right in Right}
    words = [word.strip() for word in rights.split(",")]
    if unknown := [word for word in words if word not in known]:
        raise ConfigError(f"--rights has {', '.join(map(repr, unknown))}.", hint=f"Choose among {', '.join(known)}.")
    granted = frozenset(known[word] for word in words)
    key = add_key(path, name, now, read_expiry(expires, now), granted, given)
    write_output(f"{key}\n")
    click.echo(
        f"The key {name} is in it, as a hash; a server that reads this file takes it in within a second. On the "
        "device, put the line above into a file that only its user can read: moa-client servers add NAME HOST:PORT "
        "--tls --key-file FILE.",
        err=True,
    )


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a key.")
@file_option
@server_config
def list_keys(as_json: bool, keys_file: Path | None, config_file: Path | None) -> None:
    """List the keys, with their rights and limits."""
    from moa_server.access.keys import entry_fields, read_key_file

    now = datetime.now(UTC)
    entries = read_key_file(_path(keys_file, config_file)).entries.values()
    rows: list[dict[str, Any]] = []
    for entry in entries:
        row = {"name": entry.name, "id": entry.identifier, **entry_fields(entry), "expired": entry.has_expired(now)}
        del row["sha256"]
        rows.append(row)
    if as_json:
        write_output("".join(json.dumps(row) + "\n" for row in rows))
        return
    if not rows:
        write_output("There are no keys. Make one: moa-server keys add NAME\n")
        return
    lines = [("name", "id", "rights", "limits", "created", "expires")]
    for row in rows:
        limits = [
            f"{row[each.name]} {each.name.replace('_', ' ')}" for each in fields(CallerLimits) if each.name in row
        ]
        until = f"{row['expires'][:10]}{' (expired)' if row['expired'] else ''}" if "expires" in row else "never"
        what = ", ".join(row["rights"]), ", ".join(limits) or "the server's"
        lines.append((row["name"], row["id"], *what, row.get("created", "")[:10], until))
    write_output(table(lines))


@keys.command()
@click.argument("name")
@file_option
@server_config
def revoke(name: str, keys_file: Path | None, config_file: Path | None) -> None:
    """Take the key NAME back: a running server ends its answers within a second."""
    from moa_server.access.keys import changing, read_key_file

    path = _path(keys_file, config_file)
    read_key_file(path).without(name)  # nothing is made where nothing is
    with changing(path) as book:
        book[0] = book[0].without(name)
    click.echo(f"The key {name} is revoked.", err=True)


def _path(keys_file: Path | None, config_file: Path | None) -> Path:
    from moa_server.setting_up import find_key_file

    path, origin = find_key_file(config_file, keys_file)
    click.echo(f"The file of keys is {path} (from {origin}).", err=True)
    return path
