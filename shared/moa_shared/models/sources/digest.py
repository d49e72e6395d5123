"""sha256 of files, remembered by the file's identity so that a model is read once, and the manifests of cache entries.

State: small records under `<cache>/hashes`. A record counts only while path, size, modification time and inode are the
same; anything else means reading the file again. A manifest says what an entry was made from, and size and sha256 of
each file in it; it is written last, before the entry gets its final name. Invariant: a digest returned was computed
from the bytes; an entry that is used agrees with its manifest, in sizes at every start and in bytes whenever a file is
not the very one that was hashed before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moa_shared.errors import ChecksumError, NotFoundError
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.text.json_text import parse_json

_BLOCK = 1 << 20
_BAR_BYTES = 1_000_000_000  # sha256 does about 1 GB/s: below this there is nothing to wait for


def hash_file(path: Path, progress: Progress | None = None) -> str:
    progress = progress or SilentProgress()
    size = path.stat().st_size
    digest = hashlib.sha256()
    shown = progress if size >= _BAR_BYTES else SilentProgress()
    with path.open("rb") as file, shown.task(f"Checking {path.name}", size, is_bytes=True) as task:
        while block := file.read(_BLOCK):
            digest.update(block)
            task.advance(len(block))
    return digest.hexdigest()


def remembered_hash(path: Path, root: Path, progress: Progress | None = None) -> str:
    """sha256 (hex) of a file, from the record under `root` where the file is unchanged since; raises NotFoundError."""
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    identity = [str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    key = hashlib.sha256(str(identity[0]).encode()).hexdigest()[:32]
    known = recall(root, key)
    if known.get("identity") == identity and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hash_file(path, progress)
    remember(root, key, {"identity": identity, "sha256": digest})
    return digest


def canonical_json(value: object) -> bytes:
    """JSON with one spelling for one value, for hashing."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def combine(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def recall(root: Path, key: str) -> dict[str, Any]:
    """The record of that name under `root`; empty where there is none, or a damaged one."""
    try:
        known = parse_json((root / "hashes" / f"{key}.json").read_text("utf-8"))
    except (OSError, ValueError):  # then it is computed again
        return {}
    return known if isinstance(known, dict) else {}


def remember(root: Path, key: str, content: dict[str, Any]) -> None:
    record = root / "hashes" / f"{key}.json"
    try:
        with whole_file(record, several_writers=True) as partial:
            partial.write_bytes(json.dumps(content).encode())
    except OSError:
        return  # a record only saves time: on a read-only or full disk the next start computes again


MANIFEST = "manifest.json"
FORMAT = 8  # raise when what an entry holds changes: older entries are then no longer found


def write_manifest(folder: Path, target_id: str, source: str) -> None:
    """Record the files of `folder`, read back from the disk. `source`: the hash of what the entry is made from."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST
    }
    content = {"format": FORMAT, "target_id": target_id, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def check_manifest(folder: Path, root: Path, progress: Progress | None = None) -> str:
    """Check an entry against its manifest and return its target id. Files unchanged since are not read again."""
    hint = f"Delete {folder}; it is built again at the next start."
    try:
        content = parse_json((folder / MANIFEST).read_text("utf-8"))
        target_id, files = str(content["target_id"]), dict(content["files"])
        expected = {str(name): (int(record["size"]), str(record["sha256"])) for name, record in files.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChecksumError(f"The manifest of {folder} cannot be read: {error}.", hint=hint) from error
    for name, (size, sha256) in expected.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            got = "is missing" if found is None else f"has {found} bytes"
            raise ChecksumError(f"{path} {got}, expected {size} bytes.", hint=hint)
        digest = remembered_hash(path, root, progress)
        if digest != sha256:
            raise ChecksumError(f"{path} has the sha256 {digest}, expected {sha256}.", hint=hint)
    return target_id
