"""`moa-server models`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.command_line import table, text
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import write_output

from moa_server.settings import SECTION, ServerSettings

if TYPE_CHECKING:
    from moa_shared.models.cached import CacheItem


def _refuse_cache(_: click.Context, __: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        hint = "Leave it out: moa 0.2.0 was the last that had it."
        raise ConfigError("`moa-server models` keeps nothing, and has no --cache-dir.", hint=hint)


@click.command()
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cache-dir", hidden=True, expose_value=False, callback=_refuse_cache)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folders: tuple[Path, ...], as_json: bool) -> None:
    """List the models on this machine: in the hub's cache, in ollama's and LM Studio's folders, and below each FOLDER.

    `moa-server serve` takes their names. Only headers are read; a file that is broken is listed with what is wrong.
    """
    from moa_shared.programs.progress import SilentProgress, make_progress

    from moa_server.listing.models import list_models, models_json, models_text

    progress = make_progress() if sys.stderr.isatty() else SilentProgress()
    listed = list_models(folders, progress)
    write_output((models_json if as_json else models_text)(listed))


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

    from moa_server.listing.drafters import drafters_json, drafters_text, list_drafters

    progress = make_progress() if sys.stderr.isatty() else SilentProgress()
    write_output((drafters_json if as_json else drafters_text)(list_drafters(model, cache_dir, progress)))


@click.command()
@click.argument("model", metavar="OWNER/NAME[@REVISION][:WHICH]", type=text)
def pull(model: str) -> None:
    """Fetch a model from the hub, or from the mirror that HF_ENDPOINT names, into the hub's own cache.

    WHICH of a repository of GGUF files: how it is stored (Q4_K_M), a file's name, or a pattern of names. Without it,
    the safetensors are fetched where there are any, else Q4_K_M. What was interrupted goes on where it was. HF_TOKEN is
    sent, HF_HOME says where the cache is. Prints the name by which the model can be served.
    """
    from moa_shared.models.sources.hub import HubModel, hub_cache
    from moa_shared.models.sources.hub import pull as fetch
    from moa_shared.models.sources.packaged import PACKAGED, find_installed, not_installed
    from moa_shared.models.sources.source import hub_models
    from moa_shared.programs.progress import make_progress

    progress = make_progress()
    wanted = HubModel.parse(model)
    if model in PACKAGED:
        if find_installed(PACKAGED[model]) is None:
            raise not_installed(model, PACKAGED[model])
        progress.note(f"{model} comes in a package, which is installed: nothing is fetched.")
        write_output(f"{model}\n")
        return
    if wanted is None:
        raise ConfigError(f"{model!r} is no model of a hub.", hint="Name OWNER/NAME, or OWNER/NAME:Q4_K_M.")
    path = fetch(wanted, progress)
    write_output(next(each.name for each in hub_models(hub_cache()) if each.path == path) + "\n")


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
