"""`netsim record`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import click
import yaml

from netsim.cli.options import PATH
from netsim.errors import MeasurementError
from netsim.measure.near_end import measure
from netsim.measure.outcome import to_profile, to_trace
from netsim.profile import catalogue
from netsim.run.address import parse_address
from netsim.trace.csv_format import format_csv


@click.command("record")
@click.argument("server", metavar="HOST:PORT")
@click.argument("target", type=PATH)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="Round trips on the idle link."
)
@click.option(
    "--load",
    "load_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Then saturate it for so long.",
)
def command(server: str, target: Path, seconds: float, load_s: float) -> None:
    """Measure a real link to a server into a profile or a trace.

    TARGET is a profile if it ends in .yaml, a trace if it ends in .csv. Against `netsim serve` round trips, rates and
    retransmissions are measured; against any other server only the time that connecting takes.
    """
    if target.suffix not in (".yaml", ".csv"):
        raise MeasurementError(f"{target} ends in neither .yaml nor .csv.", hint="A profile is .yaml, a trace .csv.")
    seen = measure(parse_address(server, "server"), seconds, load_s)
    if not seen.far_end:
        click.echo("netsim: the server is not `netsim serve`: only round trips were measured", err=True)
    if target.suffix == ".yaml":
        text = yaml.safe_dump(to_profile(seen, target.stem, server), sort_keys=False, width=110)
        catalogue.parse(text, str(target))  # what we write, we can read
    else:
        text = format_csv(to_trace(seen))
    try:
        target.write_text(text)
    except OSError as error:
        raise MeasurementError(f"{target} cannot be written: {error.strerror}.") from error
    values = sorted(value for _, value in seen.round_trips_ms)
    rates = [
        f"{name} {fmean(rate for _, rate in series):.1f} Mbit/s"
        for name, series in (("down", seen.down_mbps), ("up", seen.up_mbps))
        if series
    ]
    click.echo(
        f"{len(values)} round trips, median {values[len(values) // 2]:.1f} ms" + "".join(f", {r}" for r in rates)
    )
    click.echo(f"written to {target}")
