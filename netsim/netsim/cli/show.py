"""`netsim show`."""

from __future__ import annotations

import json

import click
import yaml

from netsim import catalogue
from netsim.core.link import Direction


@click.command("show")
@click.argument("profile")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def command(profile: str, as_json: bool) -> None:
    """Print a profile, with what it comes to."""
    loaded = catalogue.load(profile)
    if as_json:
        click.echo(json.dumps(loaded.document(), indent=2))
        return
    click.echo(yaml.safe_dump(loaded.document(), sort_keys=False, width=110), nl=False)
    for direction in Direction:
        conditions = loaded.conditions(direction)
        moments = conditions.delay.effective()
        click.echo(
            f"# {direction}: delay {moments.mean_ms:.2f} +- {moments.deviation_ms:.2f} ms each way as drawn, "
            f"{conditions.loss.mean:.3%} lost"
        )
