"""`moa-server cache`: what lies in the cache folder, and how to get rid of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import load_settings
from moa_shared.programs.output import write_output

from moa_server.settings import SECTION, ServerSettings

if TYPE_CHECKING:
    from moa_shared.models.cached import CacheItem

DAY_SECONDS = 86400.0
folder_option = click.option(
    "--cache-dir",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where models are kept.  [default: as moa-server serve]",
)


@click.group()
def cache() -> None:
    """List and remove what moa keeps of models on this disk. All of it is made again when it is needed."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an item.")
@folder_option
def list_items(as_json: bool, cache_dir: Path | None) -> None:
    """List it: size, last use, what it was made from, and whether it is of use."""
    from moa_shared.models.cached import list_cache

    root = _root(cache_dir)
    items = list_cache(root)
    if as_json:
        write_output("".join(json.dumps(_fields(item, root)) + "\n" for item in items))
        return
    if not items:
        write_output(f"There is nothing in {root}.\n")
        return
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("model", "what", "size", "last used", "made from", "path in the cache"):
        table.add_column(head, overflow="fold", justify="right" if head == "size" else "left")
    for item in items:
        used = datetime.fromtimestamp(item.used, UTC).strftime("%Y-%m-%d")
        source = item.useless or ", ".join(str(path) for path in item.sources[:1])
        path = str(item.path.relative_to(root))
        table.add_row(item.model or "-", item.kind, decimal(item.nbytes), used, source or "-", path)
    _print(table)
    useless = [item for item in items if item.useless]
    total = decimal(sum(item.nbytes for item in items))
    words = f"{total} in {root}"
    if useless:
        words += f", {decimal(sum(item.nbytes for item in useless))} of it of no more use: moa-server cache prune"
    click.echo(words, err=True)


@cache.command()
@click.argument("names", metavar="MODEL|PATH...", nargs=-1, required=True)
@folder_option
def remove(names: tuple[str, ...], cache_dir: Path | None) -> None:
    """Remove all that is kept of a model, or one item by its path in the cache. Servers that run go on."""
    from moa_shared.models.cached import find_items, list_cache

    root = _root(cache_dir)
    items = list_cache(root)
    chosen: dict[Path, CacheItem] = {}
    for name in names:
        found = find_items(items, name, root)
        if not found:
            raise NotFoundError(f"Nothing in {root} is of {name!r}.", hint="`moa-server cache list` shows all of it.")
        chosen |= {item.path: item for item in found}
    _remove(chosen.values(), root)


@cache.command()
@click.option("--days", type=click.IntRange(min=0), metavar="N", help="Also what was not used for so many days.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@folder_option
def prune(days: int | None, dry_run: bool, cache_dir: Path | None) -> None:
    """Remove what is of no more use: of files that are gone or have changed, or of other versions of moa."""
    from moa_shared.models.cached import list_cache

    root = _root(cache_dir)
    oldest = 0.0 if days is None else time.time() - days * DAY_SECONDS
    chosen = [item for item in list_cache(root) if item.useless or item.used < oldest]
    if not chosen:
        click.echo(f"Everything in {root} is of use.", err=True)
    _remove(chosen, root, dry_run=dry_run)


def _remove(items: Iterable[CacheItem], root: Path, *, dry_run: bool = False) -> None:
    from moa_shared.models.cached import remove_item
    from rich.filesize import decimal

    for item in items:
        if not dry_run:
            try:
                remove_item(item)
            except OSError as error:
                raise ConfigError(
                    f"{item.path} cannot be removed: {error.strerror or error}.", hint="Run this as its owner."
                ) from error
        why = f" ({item.useless})" if item.useless else ""
        verb = "would remove" if dry_run else "removed"
        write_output(f"{verb} {item.path.relative_to(root)}, {decimal(item.nbytes)}{why}\n")


def _root(cache_dir: Path | None) -> Path:
    from moa_shared.models.sources.cache import cache_root

    return cache_root(load_settings(ServerSettings, SECTION, {"cache_dir": cache_dir}, None).cache_dir)


def _fields(item: CacheItem, root: Path) -> dict[str, Any]:
    return {
        "path": str(item.path.relative_to(root)),
        "kind": item.kind,
        "model": item.model,
        "bytes": item.nbytes,
        "used": datetime.fromtimestamp(item.used, UTC).isoformat(timespec="seconds"),
        "sources": [{"path": str(path), "exists": path.exists()} for path in item.sources],
        "useless": item.useless,
    }


def _print(table: Any) -> None:
    """Prints a table as wide as it needs to be."""
    import io

    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=240, color_system=None).print(table)
    write_output("".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines()))
