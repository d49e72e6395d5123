"""`netsim netem`."""

from __future__ import annotations

import click

from netsim.core.link import Direction
from netsim.profile import catalogue, netem


@click.command("netem")
@click.argument("profile")
@click.option("--dev", "device", default="eth0", show_default=True, help="The client's device, which sends up.")
@click.option(
    "--down-dev",
    "down_device",
    default=None,
    help="The device that sends down [default: the same name, at the server].",
)
def command(profile: str, device: str, down_device: str | None) -> None:
    """Print the tc commands that make a kernel behave like a profile."""
    loaded = catalogue.load(profile)
    for direction, name in ((Direction.UP, device), (Direction.DOWN, down_device or device)):
        for line in netem.commands(loaded, name, direction):
            click.echo(line)
