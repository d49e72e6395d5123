"""The commands about profiles and traces, none of which opens a link: `netsim profiles`, `show`, `netem`, `convert`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml

from netsim.cli.options import IGNORE, PATH, format_option, print_remarks
from netsim.core.link import Direction
from netsim.errors import ProfileError, TraceError
from netsim.profile.netem import tc_commands
from netsim.profile.profiles import load, names
from netsim.profile.reference import fields_markdown
from netsim.trace.formats import TraceFormat, format_trace, read_trace


@click.command("profiles")
def profiles() -> None:
    """List the profiles."""
    width = max(map(len, names()))
    for name in names():
        click.echo(f"{name:{width}}  {load(name).description}")


@click.command("show")
@click.argument("profile", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
@click.option("--fields", is_flag=True, help="Print the reference of the profile format instead, as Markdown.")
def show(profile: str | None, as_json: bool, fields: bool) -> None:
    """Print a profile and the delays and losses it amounts to."""
    if fields:
        click.echo(fields_markdown(), nl=False)
        return
    if profile is None:
        raise ProfileError("Which profile?", hint=f"Profiles are {', '.join(names())}.")
    loaded = load(profile)
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


@click.command("netem")
@click.argument("profile")
@click.option("--dev", "device", default="eth0", show_default=True, help="The client's device, which sends up.")
@click.option(
    "--down-dev", "down_device", help="The device that sends down [default: the same name, at the server]."
)  # fmt: skip
def netem(profile: str, device: str, down_device: str | None) -> None:
    """Print the tc commands that make a kernel behave like a profile."""
    loaded = load(profile)
    for direction, name in ((Direction.UP, device), (Direction.DOWN, down_device or device)):
        for line in tc_commands(loaded, name, direction):
            click.echo(line)


@click.command("convert")
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@format_option("--from", "source_form", "Format of SOURCE [default: detected from its content].")
@format_option("--to", "target_form", "Format of TARGET.", "csv")
@click.option("--up", is_flag=True, help="Write the rate up, where the format has only one.")
@IGNORE
def convert(
    source: Path, target: Path, source_form: str | None, target_form: str, up: bool, ignored: tuple[str, ...]
) -> None:
    """Convert a trace between formats.

    Mahimahi and Pensieve files hold a single rate; reading one fills down_mbps.
    """
    trace = read_trace(source, TraceFormat(source_form) if source_form else None, ignored)
    print_remarks(trace)
    text = format_trace(trace, TraceFormat(target_form), "up_mbps" if up else "down_mbps")
    try:
        target.write_text(text)
    except OSError as error:
        raise TraceError(f"{target} cannot be written: {error.strerror}.") from error
    click.echo(f"{len(trace.rows)} rows, {trace.duration_s:.1f} s: {target}")
