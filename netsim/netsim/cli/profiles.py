"""The commands about profiles: `netsim profiles`, `show`, and `record` with its far end `serve`."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from statistics import fmean, median
from types import FrameType

import click
import yaml

from netsim import measure
from netsim.cli import PATH
from netsim.core.link import Direction
from netsim.errors import NetsimError
from netsim.profiles import load, names, parse
from netsim.run.loop import Address, listen, parse_address
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
