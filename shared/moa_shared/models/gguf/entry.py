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
from pathlib import Path

from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.gguf.configuration import SMOLLM2_135M_INSTRUCT, make_config, make_generation
from moa_shared.models.gguf.header import DAMAGED, GgufHeader, TensorEntry, read_header
from moa_shared.models.gguf.vocabulary import write_tokenizer
from moa_shared.models.sources.cache import (
    FORMAT,
    MANIFEST,
    building,
    check_manifest,
    is_disk_full,
    locked,
    write_manifest,
)
from moa_shared.models.sources.files import GENERATION_CONFIG, ModelFiles, gguf_fingerprint, read_config
from moa_shared.models.tokenizer.trial import accept_tokenizer
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_COUNT = "split.count"
_SUFFIX, _MAGIC = ".gguf", b"GGUF"
# What says how a file is stored, in its name: Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16, MXFP4_MOE.
_LABEL = re.compile(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])", re.IGNORECASE)
# llama.cpp's numbers of mixtures (`general.file_type`).
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M",
    18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


def is_gguf(path: Path) -> bool:
    """Whether a file says that it is a GGUF file, by its suffix or its first bytes (ollama's have no suffix)."""
    if path.suffix.lower() == _SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def model_name(path: Path) -> str:
    """What a model is called by its file: the name without suffix and number of the part."""
    part = _PART.fullmatch(path.name)
    return part["stem"] if part is not None else path.stem


def is_model_file(path: Path) -> bool:
    """Whether a file is named like a model in GGUF; `mmproj` reads pictures, and is a part of another model."""
    return path.suffix.lower() == _SUFFIX and not path.name.lower().startswith("mmproj")


def storage_label(name: str) -> str | None:
    """Q4_K_M out of `Some-8B-Q4_K_M.gguf`; None where the name does not say."""
    found = _LABEL.findall(model_name(Path(name)))
    return str(found[-1]) if found else None


def file_type(header: GgufHeader) -> str:
    """How the model is stored, in the words of such labels: as the header says, else the format of most bytes."""
    number = header.integer("general.file_type")
    if number in _FILE_TYPES:
        return _FILE_TYPES[number]
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.stored.name] += tensor.size
    return sizes.most_common(1)[0][0].upper() if sizes else ""


def files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each file below a folder, and the folder that it is in; folders that may not be read are passed over."""
    for inner, _, names in os.walk(folder):
        for name in names:
            yield Path(inner, name), Path(inner)


def find_parts(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` is a file of, in order; a whole model is one file."""
    part = _PART.fullmatch(path.name)
    if part is None or not 0 < int(part["number"]) <= int(part["count"]):
        return (path,)
    numbers = range(1, int(part["count"]) + 1)
    parts = [path.with_name(f"{part['stem']}-{number:05}-of-{part['count']}{part['suffix']}") for number in numbers]
    missing = [each.name for each in parts if not each.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelSourceError(
            f"{path} is one of {len(parts)} parts of a model, of which {missing[0]}{more} is missing.",
            hint=f"Put all parts into {path.parent}.",
        )
    return tuple(parts)


def first_parts(paths: Sequence[Path]) -> list[Path]:
    """One file for each model: of those that are split the first part that is there. `paths`: in order."""
    firsts: dict[tuple[Path, str], Path] = {}
    for path in paths:
        part = _PART.fullmatch(path.name)
        firsts.setdefault((path.parent, path.name if part is None else f"{part['stem']} of {part['count']}"), path)
    return list(firsts.values())


def read_parts(paths: Sequence[Path], *, arrays: bool = True, file_bytes: int | None = None) -> list[GgufHeader]:
    headers = [read_header(paths[0], arrays=arrays, file_bytes=file_bytes)]
    headers += [read_header(path, arrays=False) for path in paths[1:]]
    for header in headers:
        count = header.integer(_COUNT) or 1
        if count != len(paths):
            raise ModelSourceError(
                f"{header.path} is one of {count} parts of a model, but was found as one of {len(paths)}.",
                hint="Give the parts the names that they were written with: NAME-00001-of-00003.gguf and so on.",
            )
    return headers


def join_headers(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The header of the whole model: the first part's metadata, and all tensors, each at its place in its own file."""
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise ModelSourceError(f"{header.path} holds {min(twice)}, as a part before it does.", hint=DAMAGED)
        tensors |= header.tensors
    return GgufHeader(headers[0].path, headers[0].metadata, tensors, headers[0].size)


TOKENIZER_BYTES = 30_000_000  # tokenizer.json of the largest vocabularies served (Qwen: 11 MB), with room
SOURCE = "source.json"  # the files' paths; written at each start, so that its time says when the entry was used last


def entry_of(identity: str, root: Path) -> Path:
    return root / "models" / f"gguf-{identity[:32]}-v{FORMAT}"


def is_ready(entry: Path) -> bool:
    """Whether the entry is there. Entries appear whole, so a look at the manifest's presence is enough."""
    return (entry / MANIFEST).is_file()


def adopt_gguf(path: Path, root: Path, progress: Progress, *, target_id: str) -> ModelFiles:
    """The model that `path` is a file of, by the name `target_id`, with its entry, made now or before."""
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
