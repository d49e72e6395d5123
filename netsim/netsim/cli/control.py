"""The commands about running and finished runs: `netsim ctl`, `netsim clean`, `netsim report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from netsim.backends.tun.namespaces import clean_leftovers, require_root
from netsim.cli.options import PATH, chosen, link_options
from netsim.errors import ControlError
from netsim.profile.profiles import parse_settings
from netsim.run import control

_DIRECTION = click.option("--direction", type=click.Choice(["up", "down", "both"]), default="both", show_default=True)
_SECONDS = click.option("--for", "seconds", type=click.FloatRange(min=0), help="End by itself after so many seconds.")


@click.group("ctl")
@link_options
def ctl() -> None:
    """Change a running link, or list those that are running."""


def _send(ctx: click.Context, request: dict[str, Any]) -> dict[str, Any]:
    path: Path | None = chosen(ctx, "control")
    name: str | None = chosen(ctx, "name")
    if path is not None and name is not None:
        raise ControlError("--name and --control both choose a link.", hint="Give one of the two.")
    running = control.running() if path is None else []
    if name is not None:
        path = control.named_path(name)
        if path not in running:
            listed = ", ".join(each.stem for each in running)
            raise ControlError(
                f"No link named {name} is running.", hint=f"Running: {listed}." if listed else "No link is running."
            )
    elif path is None:
        if not running:
            raise ControlError("No link is running.", hint="Start one with `netsim proxy` or `netsim run`.")
        if len(running) > 1:
            names = ", ".join(each.stem for each in running)
            raise ControlError(f"{len(running)} links are running.", hint=f"Say which with --name: {names}")
        path = running[0]
    return control.send(path, request)


def _done(ctx: click.Context, request: dict[str, Any]) -> None:
    answer = _send(ctx, request)
    click.echo(f"done at {answer['t_s']:.3f} s")


@ctl.command("cut")
@link_options
@_DIRECTION
@_SECONDS
@click.pass_context
def cut(ctx: click.Context, direction: str, seconds: float | None) -> None:
    """Lose everything, until healed or for a time."""
    _done(ctx, {"do": "cut", "direction": direction, "seconds": seconds})


@ctl.command("hold")
@link_options
@_DIRECTION
@_SECONDS
@click.pass_context
def hold(ctx: click.Context, direction: str, seconds: float | None) -> None:
    """Keep everything waiting, until healed or for a time."""
    _done(ctx, {"do": "hold", "direction": direction, "seconds": seconds})


@ctl.command("heal")
@link_options
@click.pass_context
def heal(ctx: click.Context) -> None:
    """End every cut, hold and refusal."""
    _done(ctx, {"do": "heal"})


@ctl.command("reset")
@link_options
@click.pass_context
def reset(ctx: click.Context) -> None:
    """End every connection with a reset."""
    _done(ctx, {"do": "reset"})


@ctl.command("fin")
@link_options
@click.pass_context
def fin(ctx: click.Context) -> None:
    """End every connection in the orderly way, as a middle box would."""
    _done(ctx, {"do": "fin"})


@ctl.command("refuse")
@link_options
@_SECONDS
@click.pass_context
def refuse(ctx: click.Context, seconds: float | None) -> None:
    """Refuse new connections, until healed or for a time."""
    _done(ctx, {"do": "refuse", "seconds": seconds})


@ctl.command("set")
@link_options
@click.argument("settings", nargs=-1, metavar="[NAME=NUMBER]...")
@click.option("--profile", metavar="NAME|FILE", help="Become this profile first.")
@click.option(
    "--ramp", "ramp_s", type=click.FloatRange(min=0), default=0.0, help="Seconds that the change of profile takes."
)
@_DIRECTION
@click.pass_context
def change(ctx: click.Context, settings: tuple[str, ...], profile: str | None, ramp_s: float, direction: str) -> None:
    """Change profile, or single values: rate_mbps (or none), delay_ms, deviation_ms, loss, queue_kib."""
    values = parse_settings(settings)
    if not values and profile is None:
        raise ControlError("Nothing to set.", hint="For example: netsim ctl set rate_mbps=5 delay_ms=80")
    resolved = str(Path(profile).resolve()) if profile is not None and "/" in profile else profile
    _done(ctx, {"do": "set", "settings": values, "profile": resolved, "ramp_s": ramp_s, "direction": direction})


@ctl.command("status")
@link_options
@click.pass_context
def status(ctx: click.Context) -> None:
    """Print the state of the link, as JSON."""
    click.echo(json.dumps(_send(ctx, {"do": "status"}), indent=2))


@ctl.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show(as_json: bool) -> None:
    """List this user's running links: name, backend, profile, address and open connections.

    Links with a control socket of their own (--control) are not found.
    """
    fields = ("name", "backend", "profile", "address", "connections")
    links = [{"name": path.stem, **control.send(path, {"do": "status"})} for path in control.running()]
    if as_json:
        click.echo(json.dumps([{field: link[field] for field in fields} for link in links], indent=2))
        return
    rows = [fields, *(tuple(str(link[field]) for field in fields) for link in links)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if links else ():
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not links:
        click.echo("no link is running", err=True)


@click.command("clean")
def clean() -> None:
    """Remove what killed runs left.

    A run does so itself when it starts; use this to look, or to leave nothing.
    """
    require_root()
    removed = clean_leftovers()
    control.running()  # removes dead sockets on its way
    click.echo("\n".join(f"removed {name}" for name in removed) or "nothing was left")


@click.command("report")
@click.argument("folder", type=PATH)
@click.option("--to", "target", type=PATH, help="The picture [default: FOLDER/report.png].")
def report(folder: Path, target: Path | None) -> None:
    """Draw a run's outputs as one picture.

    FOLDER is what a run wrote with --out; its summary.json has the figures.
    """
    from netsim.output.picture import draw_run  # imports numpy, which no other command needs

    path = target or folder / "report.png"
    draw_run(folder, path)
    click.echo(f"written to {path}")
