"""The files of GGUF models, and their cache entries: what transformers' layout has besides weights.

Parts are `NAME-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them: the first one holds the metadata
of the whole model, and each its own tensors. State: entries `gguf-<identity>`, without weights, with the paths of the
files that they were made from. Invariant: a model is read only if all its parts are there.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.files import GENERATION_CONFIG, ModelFiles, accept_tokenizer, gguf_fingerprint, read_config
from moa_shared.models.gguf_configuration import SMOLLM2_135M_INSTRUCT, make_config, make_generation
from moa_shared.models.storage.cache import FORMAT, MANIFEST, building, check_manifest, locked, write_manifest
from moa_shared.models.storage.gguf_header import GgufHeader, TensorEntry, read_header
from moa_shared.models.storage.gguf_vocabulary import write_tokenizer
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
# What says how a file is stored, in its name: Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16, MXFP4_MOE.
_LABEL = re.compile(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])", re.IGNORECASE)


def is_gguf(path: Path) -> bool:
    """Whether a file says that it is a GGUF file, by its suffix or its first bytes (ollama's have no suffix)."""
    if path.suffix.lower() == ".gguf":
        return True
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"GGUF"
    return False


def model_name(path: Path) -> str:
    part = _PART.fullmatch(path.name)
    return path.stem if part is None else part["stem"]


def is_model_file(path: Path) -> bool:
    """Whether a file is named like a model in GGUF; `mmproj` reads pictures, `mtp-` guesses ahead, each for another."""
    return path.suffix.lower() == ".gguf" and not path.name.lower().startswith(("mmproj", "mtp-"))


def storage_label(name: str) -> str | None:
    """Q4_K_M out of `Some-8B-Q4_K_M.gguf`; None where the name does not say."""
    found = _LABEL.findall(model_name(Path(name)))
    return str(found[-1]) if found else None


def file_type(header: GgufHeader) -> str:
    """How the model is stored: as its file's name says, else the format of most bytes."""
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.stored.name] += tensor.size
    most = sizes.most_common(1)[0][0].upper() if sizes else ""
    return (storage_label(header.path.name) or most).upper()


def find_parts(path: Path) -> tuple[Path, ...]:
    part = _PART.fullmatch(path.name)
    if part is None or not 0 < int(part["number"]) <= int(part["count"]):
        return (path,)
    numbers = range(1, int(part["count"]) + 1)
    parts = [path.with_name(f"{part['stem']}-{number:05}-of-{part['count']}{part['suffix']}") for number in numbers]
    if missing := [each.name for each in parts if not each.is_file()]:
        what = f"is one of {len(parts)} parts of a model, of which {', '.join(missing)} is missing"
        raise ModelSourceError(f"{path} {what}.", hint=f"Put all parts into {path.parent}.")
    return tuple(parts)


def first_parts(paths: Sequence[Path]) -> list[Path]:
    """One file for each model: of those that are split the first part that is there. `paths`: in order."""
    firsts: dict[tuple[Path, str], Path] = {}
    for path in paths:
        part = _PART.fullmatch(path.name)
        firsts.setdefault((path.parent, path.name if part is None else f"{part['stem']} of {part['count']}"), path)
    return list(firsts.values())


def read_parts(paths: Sequence[Path], *, arrays: bool = True) -> list[GgufHeader]:
    headers = [read_header(path, arrays=arrays and path == paths[0]) for path in paths]
    for header in headers:
        if (count := header.integer("split.count") or 1) != len(paths):
            what = f"is one of {count} parts of a model, but was found as one of {len(paths)}"
            hint = "Give the parts the names that they were written with: NAME-00001-of-00003.gguf and so on."
            raise header.wrong(what, hint)
    return headers


def join_headers(headers: Sequence[GgufHeader]) -> GgufHeader:
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        if twice := tensors.keys() & header.tensors.keys():
            raise header.wrong(f"holds {min(twice)}, as a part before it does")
        tensors |= header.tensors
    return GgufHeader(headers[0].path, headers[0].metadata, tensors, headers[0].size)


TOKENIZER_BYTES = 30_000_000  # tokenizer.json of the largest vocabularies served (Qwen: 11 MB), with room
SOURCE = "source.json"  # the files' paths; written at each start


def entry_of(identity: str, root: Path) -> Path:
    return root / "models" / f"gguf-{identity[:32]}-v{FORMAT}"


def is_ready(entry: Path) -> bool:
    """Whether the entry is there. Entries appear whole, so a look at the manifest's presence is enough."""
    return (entry / MANIFEST).is_file()


def adopt_gguf(path: Path, root: Path, progress: Progress, *, target_id: str) -> ModelFiles:
    """The model that `path` is a file of, with its entry, made now or before."""
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
    content = json.dumps([str(path) for path in paths]) + "\n"
    # On a read-only or full disk the model can be used all the same.
    with suppress(OSError), whole_file(entry / SOURCE, several_writers=True) as partial:
        partial.write_text(content, "utf-8")
    tokenizer = accept_tokenizer(entry, root)
    return ModelFiles(target_id, entry, read_config(entry), paths, gguf_fingerprint(identity), tokenizer)


def describe_entry(entry: Path, root: Path) -> ModelFiles:
    """The model of an entry, read from the files that it was made from, or used with last."""
    target_id, path = check_manifest(entry, root), entry / "the GGUF file"
    with suppress(OSError, ValueError, TypeError, LookupError):
        path = Path(str(parse_json((entry / SOURCE).read_text("utf-8"))[0]))
    if not path.is_file():
        raise ModelSourceError(f"{path}, from which {entry} was made, is no longer there.", hint="Name the file.")
    files = adopt_gguf(path, root, Progress(), target_id=target_id)
    if files.folder.name != entry.name:
        raise ModelSourceError(f"{path} holds another model than {entry} was made from.", hint="Name the file.")
    return files


def _make(header: GgufHeader, entry: Path, target_id: str, identity: str, progress: Progress) -> None:
    path = header.path
    with progress.task(f"Preparing {path.name} (once)"):
        config, generation = make_config(header), make_generation(header, identity)
        with building(entry, TOKENIZER_BYTES, f"the cache entry of {path.name}") as part:
            (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
            if generation:
                (part / GENERATION_CONFIG).write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
            write_tokenizer(header, part, progress)
            write_manifest(part, target_id, identity)


_SAMPLE_BYTES, _SAMPLES = 4096, 8  # of a tensor: its first and last bytes, and six places at equal distances between
# The default model, whose drafters and tables are bound to the sha256 of all its bytes.
_BOUND_SAMPLED = "af1d1826a4ecd03982385dbf4d1952b42baa47836461442311c079f3a46a4ca4"


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
    return SMOLLM2_135M_INSTRUCT if sampled == _BOUND_SAMPLED else sampled


def _ranges(header: GgufHeader) -> Iterator[tuple[int, int]]:
    yield 0, header.size
    for tensor in header.tensors.values():
        if tensor.size <= _SAMPLES * _SAMPLE_BYTES:
            yield tensor.offset, tensor.size
            continue
        last = tensor.size - _SAMPLE_BYTES
        for place in range(_SAMPLES):
            yield tensor.offset + last * place // (_SAMPLES - 1), _SAMPLE_BYTES
