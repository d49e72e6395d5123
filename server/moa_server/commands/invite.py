"""`moa-server invite`: a key and an invitation for another device."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import config_option
from moa_shared.programs.output import write_output

from moa_server.settings import SECTION, ServerSettings


@click.command()
@click.argument("name")
@click.option("--expires", metavar="DATE|DAYS", help="Last day, such as 2027-01-31, or days from now.  [never]")
@config_option(ServerSettings, SECTION)
def invite(name: str, expires: str | None, config_file: Path | None) -> None:
    """Make a key called NAME for another device, and print an invitation with it.

    A running server accepts it within a second. The invitation is a secret that works on any number of devices until
    `moa-server keys revoke NAME` takes it back, or it expires.
    """
    from datetime import UTC, datetime

    from moa_server.access.api_key import read_expiry
    from moa_server.setup.devices import add_device, invitation_words
    from moa_server.setup.folder import SetupFolder
    from moa_server.setup.setting_up import invitation_with, keys_of

    if config_file is None:
        raise ConfigError(
            "No configuration of a server was found.",
            hint="Make one: moa-server setup HOST. Or name your server's: --config FILE.",
        )
    where, now = SetupFolder.of(config_file), datetime.now(UTC)
    until = read_expiry(expires, now)
    invitation_with(where, "")  # an error now, not after the key is made
    key = add_device(keys_of(where), name, now, until)
    write_output(f"{invitation_with(where, key).line()}\n")
    print(f"The key {name} is in {keys_of(where)}.", file=sys.stderr)
    print(invitation_words(name, where.settings, until), end="", file=sys.stderr)
