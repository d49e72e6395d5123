"""The cache entry of a GGUF file: the file itself, and what transformers' layout has besides its weights.

Nothing is de-quantised: the weights are read from `model.gguf`, a hard link to the file, or a copy if it cannot be
linked. State: entries `gguf-<sha256 of the file>`. Invariant: an entry is whole, and in its manifest.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.header import DAMAGED, GgufHeader, read_header
from moa_shared.models.gguf.vocabulary import write_tokenizer
from moa_shared.models.sources.cache import building, is_disk_full, locked
from moa_shared.models.sources.digest import remembered_hash
from moa_shared.models.sources.files import GGUF_WEIGHTS, ModelFiles
from moa_shared.models.sources.manifest import FORMAT, MANIFEST, check_manifest, write_manifest
from moa_shared.models.weights.weights import WeightReader
from moa_shared.programs.progress import Progress

TOKENIZER_BYTES = 30_000_000  # tokenizer.json of the largest vocabularies served (Qwen: 11 MB), with room


def entry_of(sha256: str, root: Path) -> Path:
    """The cache entry of the GGUF file with that hash."""
    return root / "models" / f"gguf-{sha256[:32]}-v{FORMAT}"


def is_ready(entry: Path) -> bool:
    """Whether the entry is there. Entries appear whole, so a look at the manifest's presence is enough."""
    return (entry / MANIFEST).is_file()


def adopt_gguf(path: Path, root: Path, progress: Progress, *, target_id: str, sha256: str | None = None) -> Path:
    """The entry of the file at `path`, made now or before.

    Args:
        target_id: the name for people.
        sha256: of the file, where the caller knows it.

    Raises:
        NotFoundError: no such file.
        ModelSourceError: not a GGUF file, truncated, corrupt, or of a family that is not served.
        DiskFullError: no room for a copy.
        ChecksumError: the entry in the cache was damaged.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.")
    if sha256 is None:
        sha256 = remembered_hash(path, root, progress)
    entry = entry_of(sha256, root)
    if not is_ready(entry):
        header = read_header(path)
        with locked(entry, progress):
            if not is_ready(entry):  # another process may have made it while we waited
                _make(header, entry, target_id, sha256, progress)
    check_manifest(entry, root, progress)
    return entry


def _make(header: GgufHeader, entry: Path, target_id: str, sha256: str, progress: Progress) -> None:
    path = header.path
    needed = TOKENIZER_BYTES + (0 if _can_link(path, entry.parent) else path.stat().st_size)
    total = sum(tensor.size for tensor in header.tensors.values())
    with progress.task(f"Preparing {path.name} (once)", total, is_bytes=True) as task:
        config = make_config(header)
        with building(entry, needed, f"the cache entry of {path.name}") as part:
            try:
                (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
                write_tokenizer(header, part, progress)
                _link_or_copy(path, part / GGUF_WEIGHTS)
                reader = WeightReader(ModelFiles(path.name, part, config, (part / GGUF_WEIGHTS,), "", ""))
                for name in reader.names():
                    task.advance(reader.check(name))
                write_manifest(part, target_id, sha256, {GGUF_WEIGHTS: sha256})
            except (OSError, ValueError) as error:
                if is_disk_full(error):
                    raise  # `building` says what is needed, and where
                raise ModelSourceError(f"The GGUF file {path} cannot be used ({error}).", hint=DAMAGED) from error


def _can_link(path: Path, folder: Path) -> bool:
    return path.stat().st_dev == folder.stat().st_dev


def _link_or_copy(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(path, place)
