"""`netsim profiles`."""

from __future__ import annotations

import click

from netsim.profile import catalogue


@click.command("profiles")
def command() -> None:
    """List the profiles."""
    width = max(map(len, catalogue.names()))
    for name in catalogue.names():
        click.echo(f"{name:{width}}  {catalogue.load(name).description}")
