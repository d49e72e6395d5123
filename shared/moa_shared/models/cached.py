"""What lies in the cache folder: packed weights, entries of models, parts for devices, drafters; and what is of no use.

All of it is made again when it is needed, so it may be removed. Records of hashes, a few hundred bytes each, are not
counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moa_kernels.variants import source_hash

from moa_shared.models.gguf.entry import SOURCE, source_paths
from moa_shared.models.sources.cache import FORMAT, MANIFEST, is_being_written
from moa_shared.models.weights.tile_file import read_table
from moa_shared.text.plain_text import parse_json

TILES, MODEL, DRAFTER, LEFTOVER = "packed weights", "model", "drafter", "leftover"
PARTS, FETCHED = "parts for devices", "fetched parts"
_FOLDERS = {"models": MODEL, "served-parts": PARTS, "drafters": DRAFTER, "fetched": FETCHED}


@dataclass(frozen=True, slots=True)
class CacheItem:
    """A file or a folder of the cache."""

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


def remove_item(item: CacheItem) -> None:
    """Programs that have mapped it keep what they have mapped; raises OSError."""
    if item.path.is_dir():
        shutil.rmtree(item.path)
    else:
        item.path.unlink(missing_ok=True)


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
