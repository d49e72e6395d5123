"""`netsim clean`."""

from __future__ import annotations

import click

from netsim.run import control
from netsim.tun.namespaces import clean_leftovers, require_root


@click.command("clean")
def command() -> None:
    """Remove what killed runs left behind.

    Runs do so themselves when they start; this is for looking, or for leaving nothing.
    """
    require_root()
    removed = clean_leftovers()
    control.running()  # removes dead sockets on its way
    click.echo("\n".join(f"removed {name}" for name in removed) or "nothing was left")
