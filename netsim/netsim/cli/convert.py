"""`netsim convert`."""

from __future__ import annotations

from pathlib import Path

import click

from netsim.cli.options import PATH, tell_remarks
from netsim.errors import TraceError
from netsim.trace.files import Format, format_trace, read_trace


@click.command("convert")
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--from",
    "source_form",
    type=click.Choice([str(form) for form in Format]),
    help="Format of SOURCE [default: told from its content].",
)
@click.option(
    "--to",
    "target_form",
    type=click.Choice([str(form) for form in Format]),
    default="csv",
    show_default=True,
    help="Format of TARGET.",
)
@click.option("--up", is_flag=True, help="Write the rate up, where the format has only one.")
@click.option(
    "--ignore", "ignored", multiple=True, metavar="COLUMN", help="Pass over this column of a CSV; may be repeated."
)
def command(
    source: Path, target: Path, source_form: str | None, target_form: str, up: bool, ignored: tuple[str, ...]
) -> None:
    """Convert a trace between formats.

    Mahimahi, Pensieve and netem-trace files hold one rate and nothing else; reading them fills down_mbps.
    """
    trace = read_trace(source, Format(source_form) if source_form else None, ignored)
    tell_remarks(trace)
    text = format_trace(trace, Format(target_form), "up_mbps" if up else "down_mbps")
    try:
        target.write_text(text)
    except OSError as error:
        raise TraceError(f"{target} cannot be written: {error.strerror}.") from error
    click.echo(f"{len(trace.rows)} rows, {trace.duration_s:.1f} s: {target}")
