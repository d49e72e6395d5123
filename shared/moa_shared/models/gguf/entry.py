"""The cache entry of a GGUF model: what transformers' layout has besides weights, which are read from the file itself.

State: entries `gguf-<identity>`, with the paths of the files that they were made from. Invariant: an entry is whole,
and in its manifest; it holds no weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.gguf.configuration import SMOLLM2_135M_INSTRUCT, make_config, make_generation
from moa_shared.models.gguf.header import GgufHeader
from moa_shared.models.gguf.parts import find_parts, join_headers, read_parts
from moa_shared.models.gguf.vocabulary import write_tokenizer
from moa_shared.models.sources.cache import building, is_disk_full, locked
from moa_shared.models.sources.digest import FORMAT, MANIFEST, check_manifest, write_manifest
from moa_shared.models.sources.files import ModelFiles, gguf_fingerprint, read_config
from moa_shared.models.sources.generation import GENERATION_CONFIG
from moa_shared.models.tokenizer.trial import accept_tokenizer
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.text.json_text import parse_json

TOKENIZER_BYTES = 30_000_000  # tokenizer.json of the largest vocabularies served (Qwen: 11 MB), with room
SOURCE = "source.json"  # the files' paths; written at each start, so that its time says when the entry was used last


def entry_of(identity: str, root: Path) -> Path:
    return root / "models" / f"gguf-{identity[:32]}-v{FORMAT}"


def is_ready(entry: Path) -> bool:
    """Whether the entry is there. Entries appear whole, so a look at the manifest's presence is enough."""
    return (entry / MANIFEST).is_file()


def adopt_gguf(path: Path, root: Path, progress: Progress, *, target_id: str) -> ModelFiles:
    """The model that `path` is a file of, by the name `target_id`, with its entry, made now or before.

    Raises:
        NotFoundError: no such file.
        ModelSourceError: it cannot be read, parts of it are missing, or it is of a family that is not served.
        DiskFullError, ChecksumError: no room for the entry, or it was damaged.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.")
    paths = find_parts(path)
    identity = identify(read_parts(paths, arrays=False))
    entry = entry_of(identity, root)
    if not is_ready(entry):
        header = join_headers(read_parts(paths))
        with locked(entry, progress):
            if not is_ready(entry):  # another process may have made it while we waited
                _make(header, entry, target_id, identity, progress)
    check_manifest(entry, root, progress)
    _remember_source(entry, paths)
    return _describe(entry, target_id, paths, identity, root)


def describe_entry(entry: Path, root: Path, progress: Progress | None = None) -> ModelFiles:
    """The model of an entry, read from the files that it was made from."""
    target_id = check_manifest(entry, root, progress)
    paths = source_paths(entry)
    if not paths or not all(path.is_file() for path in paths):
        gone = next((str(path) for path in paths if not path.is_file()), "its GGUF file")
        raise ModelSourceError(f"{gone}, from which {entry} was made, is no longer there.", hint="Name the file.")
    identity = identify(read_parts(paths, arrays=False))
    if entry_of(identity, root).name != entry.name:
        raise ModelSourceError(f"{paths[0]} holds another model than {entry} was made from.", hint="Name the file.")
    return _describe(entry, target_id, paths, identity, root)


def source_paths(entry: Path) -> tuple[Path, ...]:
    """The files that the entry was made from, or used with last; empty where that is not known."""
    try:
        return tuple(Path(str(path)) for path in parse_json((entry / SOURCE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return ()


def _remember_source(entry: Path, paths: Sequence[Path]) -> None:
    try:
        if source_paths(entry) == tuple(paths):
            os.utime(entry / SOURCE)
            return
        with whole_file(entry / SOURCE, several_writers=True) as partial:
            partial.write_text(json.dumps([str(path) for path in paths]) + "\n", "utf-8")
    except OSError:
        return  # a read-only or full disk: the model can be used all the same


def _describe(entry: Path, target_id: str, paths: Sequence[Path], identity: str, root: Path) -> ModelFiles:
    tokenizer = accept_tokenizer(entry, root)
    return ModelFiles(target_id, entry, read_config(entry), tuple(paths), gguf_fingerprint(identity), tokenizer)


def _make(header: GgufHeader, entry: Path, target_id: str, identity: str, progress: Progress) -> None:
    path = header.path
    with progress.task(f"Preparing {path.name} (once)"):
        config, generation = make_config(header), make_generation(header, identity)
        with building(entry, TOKENIZER_BYTES, f"the cache entry of {path.name}") as part:
            try:
                (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
                if generation:
                    (part / GENERATION_CONFIG).write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
                write_tokenizer(header, part, progress)
                write_manifest(part, target_id, identity)
            except (OSError, ValueError) as error:
                if is_disk_full(error):
                    raise  # `building` says what is needed, and where
                raise header.wrong(f"cannot be used ({error})") from error


_SAMPLE_BYTES = 4096
_SAMPLES = 8  # of a tensor: the first and the last bytes, and six places at equal distances between them
# The default model, whose drafters and tables are bound to the sha256 of all its bytes.
_BOUND_SAMPLED = "af1d1826a4ecd03982385dbf4d1952b42baa47836461442311c079f3a46a4ca4"
_BOUND_WHOLE = SMOLLM2_135M_INSTRUCT


def identify(headers: Sequence[GgufHeader]) -> str:
    digest = hashlib.sha256(f"moa-gguf-1 {len(headers)}\n".encode())
    for header in headers:
        try:
            with header.path.open("rb", buffering=0) as file:
                digest.update(f"{header.size} {os.fstat(file.fileno()).st_size}\n".encode())
                for start, size in _ranges(header):
                    file.seek(start)
                    taken = file.read(size)
                    if len(taken) != size:
                        raise ValueError(f"it ends at byte {start + len(taken)}")
                    digest.update(taken)
        except (OSError, ValueError) as error:
            raise header.wrong(f"cannot be read ({error})") from error
    sampled = digest.hexdigest()
    return _BOUND_WHOLE if sampled == _BOUND_SAMPLED else sampled


def _ranges(header: GgufHeader) -> Iterator[tuple[int, int]]:
    yield 0, header.size
    for tensor in header.tensors.values():
        if tensor.size <= _SAMPLES * _SAMPLE_BYTES:
            yield tensor.offset, tensor.size
            continue
        last = tensor.size - _SAMPLE_BYTES
        for place in range(_SAMPLES):
            yield tensor.offset + last * place // (_SAMPLES - 1), _SAMPLE_BYTES
