"""`moa-server keys`: makes, lists and revokes the keys by which a server knows its users."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import config_option
from moa_shared.programs.output import write_output

from moa_server.settings import SECTION, ServerSettings

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
@click.option(
    "--requests-per-minute", type=limit, metavar="N", help="Calls and questions.  [as the server's own limit]"
)
@click.option("--expires", metavar="DATE|DAYS", help="Last day, such as 2027-01-31, or days from now.  [never]")
@file_option
@server_config
def add(
    name: str,
    rights: str,
    sessions: int | None,
    kv_bytes: int | None,
    tokens_per_minute: int | None,
    requests_per_minute: int | None,
    expires: str | None,
    keys_file: Path | None,
    config_file: Path | None,
) -> None:
    """Make a key called NAME and print it: it is shown this once, and the file has only its hash."""
    from moa_server.access.api_key import KeyEntry, check_name, hash_of, new_key, read_expiry
    from moa_server.access.caller import CallerLimits
    from moa_server.access.key_file import changing

    now, path = datetime.now(UTC), _path(keys_file, config_file)
    check_name(name)
    until = read_expiry(expires, now)
    key = new_key()
    limits = CallerLimits(sessions or 0, kv_bytes or 0, tokens_per_minute or 0, requests_per_minute or 0)
    with changing(path) as book:
        book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), _rights(rights), limits, now, until))
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
    from moa_server.access.api_key import entry_fields
    from moa_server.access.key_file import read_key_file

    now = datetime.now(UTC)
    entries = read_key_file(_path(keys_file, config_file)).entries.values()
    rows: list[dict[str, Any]] = []
    for entry in entries:
        fields = {"name": entry.name, "id": entry.identifier, **entry_fields(entry)}
        del fields["sha256"]
        rows.append({**fields, "expired": entry.has_expired(now)})
    if as_json:
        write_output("".join(json.dumps(row) + "\n" for row in rows))
        return
    if not rows:
        write_output("There are no keys. Make one: moa-server keys add NAME\n")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("name", "id", "rights", "limits", "created", "expires"):
        table.add_column(head)
    for row in rows:
        limits = [f"{row[field]} {words}" for field, words in _LIMITS.items() if field in row]
        until = f"{row['expires'][:10]}{' (expired)' if row['expired'] else ''}" if "expires" in row else "never"
        cells = [row["name"], row["id"], ", ".join(row["rights"]), ", ".join(limits) or "the server's"]
        table.add_row(*cells, row.get("created", "")[:10], until)
    _print(table)


@keys.command()
@click.argument("name")
@file_option
@server_config
def revoke(name: str, keys_file: Path | None, config_file: Path | None) -> None:
    """Take the key NAME back: a running server ends its answers within a second."""
    from moa_server.access.key_file import changing, read_key_file

    path = _path(keys_file, config_file)
    read_key_file(path).without(name)  # nothing is made where nothing is
    with changing(path) as book:
        book[0] = book[0].without(name)
    click.echo(f"The key {name} is revoked.", err=True)


_LIMITS = {
    "sessions": "sessions",
    "kv_bytes": "bytes of keys and values",
    "tokens_per_minute": "tokens a minute",
    "requests_per_minute": "requests a minute",
}


def _path(keys_file: Path | None, config_file: Path | None) -> Path:
    """The file of keys that is meant, which the user is told."""
    from moa_server.access.named_file import find_key_file

    found = find_key_file(config_file, keys_file)
    click.echo(found.words(), err=True)
    return found.path


def _rights(text: str) -> frozenset[Any]:
    from moa_server.access.caller import Right

    known = {right.value: right for right in Right}
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ConfigError(f"--rights has {', '.join(map(repr, unknown))}.", hint=f"Choose among {', '.join(known)}.")
    return frozenset(known[word] for word in words)


def _print(table: Any) -> None:
    """Prints a table as wide as it needs to be."""
    import io

    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=200, color_system=None).print(table)
    write_output("".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines()))
