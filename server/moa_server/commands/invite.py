"""`moa-server invite`: a key and an invitation for another device."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from moa_shared.programs.output import write_output


@click.command()
@click.argument("name")
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="What `moa-server setup` has made.  [default: moa/server in the user's configuration folder]",
)
def invite(name: str, folder: Path | None) -> None:
    """Make a key called NAME for another device, and print an invitation with it.

    A running server accepts it within a second. `moa-server keys revoke` takes it back.
    """
    from datetime import UTC, datetime

    from moa_server.setup.devices import add_device
    from moa_server.setup.folder import default_folder
    from moa_server.setup.setting_up import invitation_with, keys_of, the_folder

    where = the_folder(folder, default_folder())
    invitation_with(where, "")  # an error now, not after the key is made
    key = add_device(keys_of(where), name, datetime.now(UTC))
    write_output(f"{invitation_with(where, key).line()}\n")
    told = f"""\
The line above is an invitation for one device: send it as you would a password. It is shown this once.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke {name} --config {where.settings}
"""
    print(told, end="", file=sys.stderr)
