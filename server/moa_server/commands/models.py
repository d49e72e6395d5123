"""`moa-server models`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from moa_shared.programs.output import write_output


@click.command()
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="moa's own cache.  [MOA_CACHE_DIR]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folders: tuple[Path, ...], cache_dir: Path | None, as_json: bool) -> None:
    """List the models on this machine: in the hub's cache, in ollama's and LM Studio's folders, and below each FOLDER.

    `moa-server serve` takes their names. Only headers are read; a file that is broken is listed with what is wrong.
    """
    from moa_shared.programs.progress import SilentProgress, make_progress

    from moa_server.listing.listing import list_models
    from moa_server.listing.report import models_json, models_text

    progress = make_progress() if sys.stderr.isatty() else SilentProgress()
    listed = list_models(folders, cache_dir, progress)
    write_output((models_json if as_json else models_text)(listed))
