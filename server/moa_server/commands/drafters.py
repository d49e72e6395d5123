"""`moa-server drafters`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from moa_shared.programs.command_line import text
from moa_shared.programs.output import write_output


@click.command()
@click.argument("model", default="default", type=text)
@click.option(
    "--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="moa's own cache.  [MOA_CACHE_DIR]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def drafters(model: str, cache_dir: Path | None, as_json: bool) -> None:
    """List the drafters for MODEL: those that come with moa, those in the hub's cache, and published ones.

    MODEL is named as for `moa-server serve`; nothing is fetched. Published drafters are those that this version of moa
    knows; `--drafter` of `moa-server serve` takes any other one by its id too.
    """
    from moa_shared.programs.progress import SilentProgress, make_progress

    from moa_server.listing.drafters import list_drafters
    from moa_server.listing.drafters_report import drafters_json, drafters_text

    progress = make_progress() if sys.stderr.isatty() else SilentProgress()
    write_output((drafters_json if as_json else drafters_text)(list_drafters(model, cache_dir, progress)))
