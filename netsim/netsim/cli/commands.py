"""The commands that open no link: about profiles and measurements, about running links, and about finished runs."""

import json
import signal
import socket
from functools import partial
from pathlib import Path
from statistics import fmean, median
from types import FrameType
from typing import Any

import click
import yaml

from netsim import measure
from netsim.cli import PATH
from netsim.core.link import Direction
from netsim.errors import NetsimError
from netsim.profiles import load, names, parse, parse_settings
from netsim.run import control
from netsim.run.loop import Address, listen, parse_address
from netsim.run.tun import clean_leftovers, require_root
from netsim.traces import format_csv


@click.command("profiles")
def profiles() -> None:
    """List the profiles."""
    width = max(map(len, names()))
    for name in names():
        click.echo(f"{name:{width}}  {load(name).description}")


@click.command("show")
@click.argument("profile")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def show(profile: str, as_json: bool) -> None:
    """Print a profile and the delays and losses it amounts to."""
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


@click.command("record")
@click.argument("server", metavar="HOST:PORT")
@click.argument("target", type=PATH)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="Round trips on the idle link."
)
@click.option(
    "--load", "load_s", type=click.FloatRange(min=0), default=5.0, show_default=True,
    help="Then saturate it for so many seconds.",
)  # fmt: skip
def record(server: str, target: Path, seconds: float, load_s: float) -> None:
    """Measure a real link to a server into a profile or a trace.

    TARGET is a profile if it ends in .yaml, a trace if it ends in .csv. Against `netsim serve`, round trips, rates and
    retransmissions are measured; against any other server, only the time that connecting takes.
    """
    if target.suffix not in (".yaml", ".csv"):
        raise NetsimError(f"{target} ends in neither .yaml nor .csv.", hint="A profile is .yaml, a trace .csv.")
    seen = measure.measure(parse_address(server, "server"), seconds, load_s)
    if not seen.far_end:
        click.echo("netsim: the server is not `netsim serve`: only round trips were measured", err=True)
    if target.suffix == ".yaml":
        text = yaml.safe_dump(measure.to_profile(seen, target.stem, server), sort_keys=False, width=110)
        parse(text, str(target))  # what we write, we can read
    else:
        text = format_csv(measure.to_trace(seen))
    try:
        target.write_text(text)
    except OSError as error:
        raise NetsimError(f"{target} cannot be written: {error.strerror}.") from error
    parts = [f"{len(seen.round_trips_ms)} round trips, median {median(ms for _, ms in seen.round_trips_ms):.1f} ms"]
    for name, rates in (("down", seen.down_mbps), ("up", seen.up_mbps)):
        if rates:
            parts.append(f"{name} {fmean(rate for _, rate in rates):.1f} Mbit/s")
    click.echo(f"{', '.join(parts)}\nwritten to {target}")


@click.command("serve")
@click.option("--listen", "at", default=":7000", show_default=True, metavar="[HOST]:PORT", help="Where to listen.")
def serve(at: str) -> None:
    """Be the far end that `record` measures against."""
    listener = listen(parse_address(at, "--listen"))

    def end(number: int, frame: FrameType | None) -> None:
        listener.shutdown(socket.SHUT_RDWR)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    click.echo(f"netsim serves measurements on {Address(*listener.getsockname()[:2])}")
    measure.serve(listener)


def _choose(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta[f"netsim.{parameter.name}"] = value


# They choose a running link, before or after a command of `netsim ctl`; `_send` looks at what they were given.
LINK: list[click.Parameter] = [
    click.Option(["--name"], callback=_choose, expose_value=False, help="The link's name; needed if several run."),
    click.Option(
        ["--control"], type=PATH, callback=_choose, expose_value=False, help="Its control socket, instead of a name."
    ),
]
DIRECTION = click.Option(["--direction"], type=click.Choice(["up", "down", "both"]), default="both", show_default=True)
SECONDS = click.Option(["--for", "seconds"], type=click.FloatRange(min=0), help="End by itself after so many seconds.")
ACTIONS: dict[str, tuple[str, list[click.Parameter]]] = {
    "cut": ("Lose everything, until healed or for a time.", [DIRECTION, SECONDS]),
    "hold": ("Keep everything waiting, until healed or for a time.", [DIRECTION, SECONDS]),
    "heal": ("End every cut, hold and refusal.", []),
    "reset": ("End every connection with a reset.", []),
    "fin": ("End every connection in the orderly way, as a middle box would.", []),
    "refuse": ("Refuse new connections, until healed or for a time.", [SECONDS]),
}
ctl = click.Group("ctl", params=LINK, help="Change a running link, or list those that are running.")


def _send(request: dict[str, Any]) -> dict[str, Any]:
    chosen = click.get_current_context().meta
    path: Path | None = chosen.get("netsim.control")
    name: str | None = chosen.get("netsim.name")
    if path is not None and name is not None:
        raise NetsimError("--name and --control both choose a link.", hint="Give one of the two.")
    if path is None:
        running = {each.stem: each for each in control.running()}
        listed = ", ".join(running)
        if name is not None and control.named_path(name).stem not in running:
            hint = f"Running: {listed}." if running else "No link is running."
            raise NetsimError(f"No link named {name} is running.", hint=hint)
        if not running:
            raise NetsimError("No link is running.", hint="Start one with `netsim proxy` or `netsim run`.")
        if name is None and len(running) > 1:
            raise NetsimError(f"{len(running)} links are running.", hint=f"Say which with --name: {listed}")
        path = running[name or listed]
    return control.send(path, request)


def _act(name: str, **given: Any) -> None:
    click.echo(f"done at {_send({'do': name, **given})['t_s']:.3f} s")


for _name, (_help, _own) in ACTIONS.items():
    ctl.add_command(click.Command(_name, params=[*LINK, *_own], callback=partial(_act, _name), help=_help))


@ctl.command("set", params=[*LINK, DIRECTION])
@click.argument("settings", nargs=-1, metavar="[NAME=NUMBER]...")
@click.option("--profile", metavar="NAME|FILE", help="Become this profile first.")
@click.option("--ramp", "ramp_s", type=click.FloatRange(min=0), default=0.0, help="Seconds that this takes.")
def change(settings: tuple[str, ...], profile: str | None, ramp_s: float, direction: str) -> None:
    """Change profile, or single values: rate_mbps (or none), delay_ms, deviation_ms, loss, queue_kib."""
    values = parse_settings(settings)
    if not values and profile is None:
        raise NetsimError("Nothing to set.", hint="For example: netsim ctl set rate_mbps=5 delay_ms=80")
    resolved = str(Path(profile).resolve()) if profile is not None and "/" in profile else profile
    _act("set", settings=values, profile=resolved, ramp_s=ramp_s, direction=direction)


@ctl.command("status", params=[*LINK])
def status() -> None:
    """Print the state of the link, as JSON."""
    click.echo(json.dumps(_send({"do": "status"}), indent=2))


@ctl.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_links(as_json: bool) -> None:
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
    """Remove what killed runs left, as each run does when it starts."""
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
    from netsim.picture import draw_run  # imports numpy, which no other command needs

    path = target or folder / "report.png"
    draw_run(folder, path)
    click.echo(f"written to {path}")
