"""`moa-server cache`: what lies in the cache folder, and what of it is of no use.

Packed weights, entries of models, parts for devices, drafters: all of it is made again when it is needed, so it may be
removed. Records of hashes, a few hundred bytes each, are not counted.
"""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from moa_kernels.variants import source_hash
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.models.gguf.entry import SOURCE, source_paths
from moa_shared.models.sources.cache import FORMAT, MANIFEST, cache_root, is_being_written
from moa_shared.models.weights.tile_file import read_table
from moa_shared.programs.command_line import table
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import write_output
from moa_shared.text.plain_text import parse_json
from rich.filesize import decimal

from moa_server.settings import SECTION, ServerSettings

TILES, MODEL, DRAFTER, LEFTOVER = "packed weights", "model", "drafter", "leftover"
PARTS, FETCHED = "parts for devices", "fetched parts"
_FOLDERS = {"models": MODEL, "served-parts": PARTS, "drafters": DRAFTER, "fetched": FETCHED}


@dataclass(frozen=True, slots=True)
class CacheItem:
    path: Path
    kind: str  # one of those above
    model: str  # the model's name; empty: not known
    nbytes: int
    used: float  # when it was last used, in seconds since 1970, as far as that is recorded
    sources: tuple[Path, ...] = ()  # the files that it was made from; empty: none, or not known
    useless: str = ""  # why it will not be used again; empty: it may be used


def list_cache(root: Path) -> list[CacheItem]:
    return sorted((*_tile_files(root), *_entries(root)), key=lambda item: -item.nbytes)


def find_items(items: Sequence[CacheItem], name: str, root: Path) -> list[CacheItem]:
    """Those of a model, or the one with that path within the cache."""
    return [item for item in items if name in (item.model, str(item.path), str(item.path.relative_to(root)))]


def _tile_files(root: Path) -> Iterator[CacheItem]:
    for path in sorted((root / "tiles").glob("*.tiles*")):
        if path.suffix == ".lock":
            continue
        with suppress(OSError):  # removed meanwhile
            stat = path.stat()
            if path.suffix != ".tiles":
                useless = _abandoned(path.with_suffix(""))
                yield CacheItem(path, LEFTOVER, "", stat.st_size, stat.st_mtime, (), useless)
                continue
            table = read_table(path)
            if table is None:
                yield CacheItem(path, TILES, "", stat.st_size, stat.st_mtime, (), "is damaged")
                continue
            sources = tuple(Path(name) for name, _, _ in table.sources)
            useless = _gone(sources) or ("" if table.is_current() else "its model's file has changed")
            if f"-{source_hash()[:12]}" not in path.stem:
                useless = "for other kernels than those installed"
            yield CacheItem(path, TILES, table.model, stat.st_size, stat.st_mtime, sources, useless)


def _entries(root: Path) -> Iterator[CacheItem]:
    entries = [(entry, kind) for folder, kind in _FOLDERS.items() for entry in sorted((root / folder).glob("*"))]
    for entry, kind in entries:
        if not entry.is_dir():
            continue
        with suppress(OSError):
            nbytes = sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
            if ".part-" in entry.name:
                useless = _abandoned(entry.with_name(entry.name.partition(".part-")[0]))
                yield CacheItem(entry, LEFTOVER, "", nbytes, entry.stat().st_mtime, (), useless)
                continue
            used = next((each for each in (entry / SOURCE, entry / MANIFEST) if each.exists()), entry)
            sources = source_paths(entry)
            older = kind in (MODEL, PARTS) and not entry.name.endswith(f"-v{FORMAT}")
            useless = "of another version of moa" if older else _gone(sources)
            yield CacheItem(entry, kind, _model_of(entry), nbytes, used.stat().st_mtime, sources, useless)


def _abandoned(entry: Path) -> str:
    return "" if is_being_written(entry) else "was never completed"


def _gone(sources: Sequence[Path]) -> str:
    missing = next((path for path in sources if not path.exists()), None)
    return "" if missing is None else f"{missing.name} is no longer there"


def _model_of(entry: Path) -> str:
    try:
        return str(parse_json((entry / MANIFEST).read_text("utf-8"))["target_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


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
    root = _root(cache_dir)
    items = list_cache(root)
    if as_json:
        write_output("".join(json.dumps(_fields(item, root)) + "\n" for item in items))
        return
    if not items:
        write_output(f"There is nothing in {root}.\n")
        return
    rows = [("model", "what", "size", "last used", "made from", "path in the cache")]
    for item in items:
        used = datetime.fromtimestamp(item.used, UTC).strftime("%Y-%m-%d")
        source = item.useless or ", ".join(str(path) for path in item.sources[:1])
        path = str(item.path.relative_to(root))
        rows.append((item.model or "-", item.kind, decimal(item.nbytes), used, source or "-", path))
    write_output(table(rows, right=(2,)))
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
    root = _root(cache_dir)
    items = list_cache(root)
    chosen: dict[Path, CacheItem] = {}
    for name in names:
        found = find_items(items, name, root)
        if not found:
            raise NotFoundError(f"Nothing in {root} is of {name!r}.", hint="`moa-server cache list` shows all of it.")
        chosen |= {item.path: item for item in found}
    remove_items(chosen.values(), root)


@cache.command()
@click.option("--days", type=click.IntRange(min=0), metavar="N", help="Also what was not used for so many days.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@folder_option
def prune(days: int | None, dry_run: bool, cache_dir: Path | None) -> None:
    """Remove what is of no more use: of files that are gone or have changed, or of other versions of moa."""
    root = _root(cache_dir)
    oldest = 0.0 if days is None else time.time() - 86_400.0 * days
    chosen = [item for item in list_cache(root) if item.useless or item.used < oldest]
    if not chosen:
        click.echo(f"Everything in {root} is of use.", err=True)
    remove_items(chosen, root, dry_run=dry_run)


def remove_items(items: Iterable[CacheItem], root: Path, *, dry_run: bool = False) -> None:
    for item in items:
        if not dry_run:
            try:  # programs that have mapped it keep what they have mapped
                if item.path.is_dir():
                    shutil.rmtree(item.path)
                else:
                    item.path.unlink(missing_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"{item.path} cannot be removed: {error.strerror or error}.", hint="Run this as its owner."
                ) from error
        why = f" ({item.useless})" if item.useless else ""
        verb = "would remove" if dry_run else "removed"
        write_output(f"{verb} {item.path.relative_to(root)}, {decimal(item.nbytes)}{why}\n")


def _root(cache_dir: Path | None) -> Path:
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
