"""`netsim show`."""

from __future__ import annotations

import json

import click
import yaml

from netsim.core.link import Direction
from netsim.errors import ProfileError
from netsim.profile import catalogue
from netsim.profile.reference import fields_markdown


@click.command("show")
@click.argument("profile", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
@click.option("--fields", is_flag=True, help="Print the reference of the profile format instead, as Markdown.")
def command(profile: str | None, as_json: bool, fields: bool) -> None:
    """Print a profile, with what it comes to."""
    if fields:
        click.echo(fields_markdown(), nl=False)
        return
    if profile is None:
        raise ProfileError("Which profile?", hint=f"There are {', '.join(catalogue.names())}.")
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
