"""The manifest of a cache entry: what it was made from, and size and sha256 of each file in it.

Written last, before the entry gets its final name. Invariant: an entry that is used agrees with its manifest, in sizes
at every start and in bytes whenever a file is not the very one that was hashed before.
"""

from __future__ import annotations

import json
from pathlib import Path

from moa_shared.errors import ChecksumError
from moa_shared.models.sources.digest import hash_file, remembered_hash
from moa_shared.programs.progress import Progress
from moa_shared.text.json_text import parse_json

MANIFEST = "manifest.json"
FORMAT = 8  # raise when what an entry holds changes: older entries are then no longer found


def write_manifest(folder: Path, target_id: str, source: str) -> None:
    """Record the files of `folder`, read back from the disk.

    Args:
        source: identity or fingerprint (hex) of what the entry is made from.
    """
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST
    }
    content = {"format": FORMAT, "target_id": target_id, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def check_manifest(folder: Path, root: Path, progress: Progress | None = None) -> str:
    """Check an entry against its manifest and return its target id. Files unchanged since are not read again.

    Raises:
        ChecksumError: a file is missing or differs, or the manifest itself cannot be read.
    """
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
