"""`netsim ctl`: changes a running link over its control socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from netsim.errors import ControlError
from netsim.profile.changes import parse_settings
from netsim.run import control

DIRECTION = click.option("--direction", type=click.Choice(["up", "down", "both"]), default="both", show_default=True)
SECONDS = click.option("--for", "seconds", type=click.FloatRange(min=0), help="End by itself after so many seconds.")


@click.group("ctl")
@click.option(
    "--control", "path", type=click.Path(path_type=Path), help="The link's control socket; needed if several run."
)
@click.pass_context
def command(ctx: click.Context, path: Path | None) -> None:
    """Change a link that is running."""
    ctx.obj = path


def _send(ctx: click.Context, request: dict[str, Any]) -> dict[str, Any]:
    path: Path | None = ctx.obj
    if path is None:
        running = control.running()
        if not running:
            raise ControlError("No link is running.", hint="Start one with `netsim proxy` or `netsim run`.")
        if len(running) > 1:
            names = ", ".join(map(str, running))
            raise ControlError(f"{len(running)} links are running.", hint=f"Say which with --control: {names}")
        path = running[0]
    return control.send(path, request)


def _done(ctx: click.Context, request: dict[str, Any]) -> None:
    answer = _send(ctx, request)
    click.echo(f"done at {answer['t_s']:.3f} s")


@command.command("cut")
@DIRECTION
@SECONDS
@click.pass_context
def cut(ctx: click.Context, direction: str, seconds: float | None) -> None:
    """Lose everything, until healed or for a time."""
    _done(ctx, {"do": "cut", "direction": direction, "seconds": seconds})


@command.command("hold")
@DIRECTION
@SECONDS
@click.pass_context
def hold(ctx: click.Context, direction: str, seconds: float | None) -> None:
    """Keep everything waiting, until healed or for a time."""
    _done(ctx, {"do": "hold", "direction": direction, "seconds": seconds})


@command.command("heal")
@click.pass_context
def heal(ctx: click.Context) -> None:
    """End every cut, hold and refusal that is on."""
    _done(ctx, {"do": "heal"})


@command.command("reset")
@click.pass_context
def reset(ctx: click.Context) -> None:
    """End every connection with a reset."""
    _done(ctx, {"do": "reset"})


@command.command("fin")
@click.pass_context
def fin(ctx: click.Context) -> None:
    """End every connection in the orderly way, as a middle box would."""
    _done(ctx, {"do": "fin"})


@command.command("refuse")
@SECONDS
@click.pass_context
def refuse(ctx: click.Context, seconds: float | None) -> None:
    """Refuse new connections, until healed or for a time."""
    _done(ctx, {"do": "refuse", "seconds": seconds})


@command.command("set")
@click.argument("settings", nargs=-1, metavar="[NAME=NUMBER]...")
@click.option("--profile", metavar="NAME|FILE", help="Become this profile first.")
@click.option(
    "--ramp", "ramp_s", type=click.FloatRange(min=0), default=0.0, help="Seconds that the change of profile takes."
)
@DIRECTION
@click.pass_context
def change(ctx: click.Context, settings: tuple[str, ...], profile: str | None, ramp_s: float, direction: str) -> None:
    """Change profile, or single values: rate_mbps (or none), delay_ms, deviation_ms, loss, queue_kib."""
    values = parse_settings(settings)
    if not values and profile is None:
        raise ControlError("Nothing to set.", hint="For example: netsim ctl set rate_mbps=5 delay_ms=80")
    resolved = str(Path(profile).resolve()) if profile is not None and "/" in profile else profile
    _done(ctx, {"do": "set", "settings": values, "profile": resolved, "ramp_s": ramp_s, "direction": direction})


@command.command("status")
@click.pass_context
def status(ctx: click.Context) -> None:
    """Print what the link is like now, as JSON."""
    click.echo(json.dumps(_send(ctx, {"do": "status"}), indent=2))
