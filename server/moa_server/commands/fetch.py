"""`moa-server fetch`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", default="default")
@click.option(
    "--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="Where models are kept.  [MOA_CACHE_DIR]"
)
def fetch(model: str, cache_dir: Path | None) -> None:
    """Fetch and convert MODEL now, so that serving it starts from the cache. Prints the folder."""
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    click.echo(resolve(model, cache_dir, make_progress()).folder)
