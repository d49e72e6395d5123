"""`netsim report`."""

from __future__ import annotations

from pathlib import Path

import click

from netsim.output.report import write_report


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), help="The HTML file [default: FOLDER/report.html].")
@click.option(
    "--png",
    is_flag=False,
    flag_value=Path(),
    type=click.Path(path_type=Path),
    help="Write the plots as a picture too [without a FILE: FOLDER/report.png].",
    metavar="[FILE]",
)
def command(folder: Path, target: Path | None, png: Path | None) -> None:
    """Draw a run's outputs as one HTML file.

    FOLDER is what a run wrote with --out.
    """
    path = target or folder / "report.html"
    picture = folder / "report.png" if png == Path() else png
    write_report(folder, path, picture)
    click.echo(f"written to {path}" + (f" and {picture}" if picture else ""))
