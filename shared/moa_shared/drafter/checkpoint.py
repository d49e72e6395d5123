"""Drafter checkpoints: the authors' 29 tensors in one safetensors file, our configuration as JSON in its metadata.

Every shape is checked. What only a server runs may be in a file of its own next to that of the device's half, by whose
hash both ends name the drafter; it holds the hash of the other. Some come with moa in a distribution of their own, for
servers: devices fetch from them. What was counted of them lies in files beside theirs: n-grams, confidence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from moa_kernels import KernelError

from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import DeviceHalf, MakeRows, NewState
from moa_shared.drafter.kinds.layout import PROJECTION
from moa_shared.drafter.kinds.weights import DRAFT_IDS, INT8, ArrayWeights, TargetParts
from moa_shared.drafting.estimates import Confidence, TokenOrigin
from moa_shared.drafting.guesses import LONGEST_CONTEXT, NgramTable
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models.network.network import Weights
from moa_shared.models.storage.cache import is_disk_full
from moa_shared.models.storage.tensors import FileTensor, map_tensors, read_metadata, write_tensors
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.entry import install_drafters
from moa_shared.protocol.memory_codec import widen_bfloat16

if TYPE_CHECKING:
    import torch

CONFIG_KEY = "moa_drafter_config"  # in the metadata of the safetensors file
DRAFTER_FILE = "drafter.safetensors"
SERVER_HALF_FILE = "projection.safetensors"
SERVER_HALF_KEY = "moa_server_half_sha256"  # in the metadata of the device's half
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A drafter's trained tensors by the authors' names, float32; `draft_ids` int32. Without a file no fingerprint."""

    config: DrafterConfig
    tensors: Mapping[str, npt.NDArray[Any]]
    fingerprint: str

    @property
    def memory_fingerprint(self) -> str:
        """Hexadecimal sha256 of what makes its memory rows; drafters that have it in common read the same ones.

        Empty for kinds whose rows no other drafter reads.
        """
        config, digest = self.config, hashlib.sha256()
        if not config.traits.shares_memory:
            return ""
        read = [config.state_entries] if config.state_entries else []
        digest.update(json.dumps([config.lsa, config.lsa_heads, config.memory_rope, *read], sort_keys=True).encode())
        for name in sorted(self.tensors):
            if name.startswith(config.traits.server_tensors):
                digest.update(name.encode() + np.ascontiguousarray(self.tensors[name]).tobytes())
        return digest.hexdigest()

    def check_server_half(self) -> None:
        if self.config.state_entries and PROJECTION not in self.tensors:
            what = "This is the device's half of a drafter, as devices fetch it: a server needs both."
            raise CheckpointError(what, hint="Name the drafter as it was published.")

    def rows(self, weights: str = INT8) -> MakeRows:
        """What makes wire rows, [tokens, memory width], from keys and values, the last hidden state or states."""
        self.check_server_half()
        return _computed(lambda: self.config.traits.rows(self.config, ArrayWeights(self.tensors), weights))

    def torch_rows(self, dtype: torch.dtype, device: torch.device | None = None) -> Callable[[Any], torch.Tensor]:
        self.check_server_half()
        return self.config.traits.torch_rows(self.config, self.torch_tensors(), dtype, device)

    def states(self, target: Weights, weights: str = INT8, *, parts: TargetParts | None = None) -> NewState:
        """What makes a conversation's drafter, the device's half; arguments as of `DeviceHalf`."""
        kind, half = self.config.traits, DeviceHalf(self.config, ArrayWeights(self.tensors), target, weights, parts)
        decoder = _computed(lambda: kind.decoder(half))
        return lambda: kind.state(decoder)

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        import torch

        return {name: torch.from_numpy(tensor) for name, tensor in self.tensors.items()}


def _computed(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except KernelError as error:
        raise ModelSourceError(f"No drafts can be computed with these weights. {error}") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint, with the server's half where that is next to it; tensors are mapped, and widened as asked."""
    if not path.is_file():
        raise NotFoundError(f"There is no drafter checkpoint {path}.", hint="Check the path given with --drafter.")
    try:
        metadata = read_metadata(path)
        server_half = _map_server_half(path, metadata)
        tensors = ArrayWeights({**map_tensors(path), **(server_half or {})})
    except (ModelSourceError, ValueError) as error:
        what = f"is corrupt or truncated ({error.__cause__ or error})"
        raise CheckpointError(f"The drafter checkpoint {path} {what}.") from None
    if CONFIG_KEY not in metadata:
        hint = "Put the config.json that was published with it next to it."
        raise CheckpointError(f"The drafter checkpoint {path} does not contain its configuration.", hint=hint)
    config = DrafterConfig.from_json(metadata[CONFIG_KEY])
    _check(path, config, tensors, absent=config.traits.server_tensors if server_half is None else ())
    return Checkpoint(config, tensors, _sha256_of(path))


def save_checkpoint(
    path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]], *, in_halves: bool = False
) -> None:
    """Writes a checkpoint of float32, or bit patterns of bfloat16 as uint16; `draft_ids` are int32.

    `in_halves`: of a kind that reads states, what only servers run goes into a file of its own.
    """
    _check(path, config, tensors)
    metadata = {CONFIG_KEY: config.to_json()}
    if in_halves and config.state_entries:
        half, names = path.with_name(SERVER_HALF_FILE), config.traits.server_tensors
        of_server = {name: tensor for name, tensor in tensors.items() if name.startswith(names)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in of_server}
        with whole_checkpoint(half, "checkpoint") as partial:
            write_tensors(partial, of_server, {})
        metadata[SERVER_HALF_KEY] = _sha256_of(half)
    with whole_checkpoint(path, "checkpoint") as partial:
        write_tensors(partial, tensors, metadata)


def _check(
    path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]], absent: tuple[str, ...] = ()
) -> None:
    def faults() -> Iterator[str]:
        shapes = {name: shape for name, shape in config.shapes().items() if not name.startswith(absent)}
        for name, shape in shapes.items():
            if name not in tensors:
                yield f"lacks the tensor {name}"
            elif (tensor := tensors[name]).shape != shape:
                yield f"holds {name} of the shape {tensor.shape}, expected {shape}"
            elif name == DRAFT_IDS:
                if tensor.dtype != np.int32 or int(tensor.min()) < 0 or int(tensor.max()) >= config.vocab_size:
                    yield "has draft ids outside the vocabulary"
            elif not is_finite(tensor):
                yield f"holds {name} with values that are not numbers"
        yield from (f"holds an unknown tensor {extra}" for extra in sorted(set(tensors) - set(shapes)))

    if fault := next(faults(), ""):
        raise CheckpointError(f"The drafter checkpoint {path} {fault}.")


def is_finite(tensor: npt.NDArray[Any]) -> bool:
    if tensor.dtype == np.uint16:
        tensor = widen_bfloat16(tensor)
    return tensor.dtype.kind == "f" and bool(np.isfinite(tensor).all())


def _map_server_half(path: Path, metadata: Mapping[str, str]) -> dict[str, FileTensor] | None:
    """The tensors of the server's half; none for a checkpoint in one file; None where only the device's is here."""
    if SERVER_HALF_KEY not in metadata:
        return {}
    half = path.parent / SERVER_HALF_FILE
    if not half.is_file():
        return None
    if _sha256_of(half) != metadata[SERVER_HALF_KEY]:
        what = f"{half} is not the server's half of {path.name}."
        raise CheckpointError(what, hint="Name the drafter as it was published.")
    return map_tensors(half)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def whole_checkpoint(path: Path, what: str) -> Iterator[Path]:
    """Gives a temporary path next to `path`, which takes its place when the block ends."""
    try:
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        message = f"The {what} {path} cannot be written ({error})."
        if is_disk_full(error):
            raise DiskFullError(message) from None
        raise CheckpointError(message, hint="Choose a folder that can be written.") from None


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    with whole_checkpoint(path, "confidence") as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def find_record(
    paths: Iterable[Path], about: Mapping[str, str], read: Callable[[dict[str, Any]], Made]
) -> tuple[Path, Made] | None:
    """The first of these files of `moa-train calibrate` about those fingerprints, and what `read` makes of it."""
    for path in paths:
        try:
            content = parse_json(path.read_text("utf-8"))
            if about.items() <= content.items():
                return path, read(content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{path} does not say how far a drafter can be trusted ({error})."
            raise CheckpointError(what, hint="Make it again with moa-train calibrate.") from None
    return None


def fresh_tensors(
    config: DrafterConfig, seed: int, draft_ids: npt.NDArray[np.int32] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Random tensors by the checkpoint's names, float32: linear weights of deviation 1 / sqrt(inputs), norms of one.

    `draft_ids`: None: the first tokens.
    """
    generator = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, shape in config.shapes().items():
        if name == DRAFT_IDS:
            tensors[name] = draft_ids if draft_ids is not None else np.arange(shape[0], dtype=np.int32)
        elif "norm" in name or (len(shape) == 1 and not name.endswith(".bias")):
            tensors[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            tensors[name] = np.zeros(shape, np.float32)
        else:
            tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
    return tensors


NGRAMS_FILE = "ngrams.safetensors"
NGRAMS_TARGET_KEY = "target_fingerprint"  # in the metadata of that file, written by moa-train ngrams
PACKAGE = "moa_drafters"
DEFAULT_DRAFTER = "default"
DEEP_DRAFTER = "deep"  # reuses many more of the target's layers: slower, and better at standalone text
SHIPPED_DRAFTERS = (DEFAULT_DRAFTER, DEEP_DRAFTER)
# Tokens a forward with trees of 24 on questions held back (docs/drafters.md).
TOKENS_A_FORWARD = {DEFAULT_DRAFTER: 2.40, DEEP_DRAFTER: 3.71}


def shipped_drafter(target_fingerprint: str, name: str = DEFAULT_DRAFTER, folder: Path | None = None) -> Path | None:
    """The checkpoint made for a target, or None if none comes with moa; folders of deep drafters are called `...-deep`.

    `target_fingerprint`: hexadecimal, of moa_shared.models.ModelFiles; `folder`: holds a folder for each drafter.
    """
    if folder is None and drafters_folder() is None and find_ngrams(target_fingerprint) is not None:
        hint = f"Install them: {install_drafters()}."
        raise ConfigError("The drafters of the default model are not installed.", hint=hint)
    return installed_drafters(target_fingerprint, folder).get(name)


def require_shipped(target_fingerprint: str, target_id: str, name: str, *, hint: str) -> Path:
    path = shipped_drafter(target_fingerprint, name)
    if path is None:
        raise NotFoundError(f"No {name} drafter comes with moa for {target_id}.", hint=hint)
    return path


def installed_drafters(target_fingerprint: str, folder: Path | None = None) -> dict[str, Path]:
    """The checkpoints made for a target by name; empty where the distribution is not installed, as on most devices."""
    folder, found = folder or drafters_folder(), dict[str, Path]()
    for path in sorted(folder.glob(f"*/{DRAFTER_FILE}")) if folder is not None else ():
        if parse_json(read_metadata(path).get(CONFIG_KEY, "{}")).get("target_fingerprint") == target_fingerprint:
            found.setdefault(DEEP_DRAFTER if path.parent.name.endswith(f"-{DEEP_DRAFTER}") else DEFAULT_DRAFTER, path)
    return found


def find_ngrams(target_fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Path | None:
    """The table of n-grams for a target: beside a drafter's checkpoint, else in the package; None: there is none."""
    paths = _candidates(NGRAMS_FILE, drafter, folder)
    return next((path for path in paths if read_metadata(path).get(NGRAMS_TARGET_KEY) == target_fingerprint), None)


def _candidates(name: str, drafter: Path | None = None, folder: Path | None = None) -> list[Path]:
    """The files of a name that there are: the one beside a drafter first, then those that come with moa."""
    beside = [] if drafter is None else [drafter.parent / name]
    ours = folder or Path(str(files("moa_shared") / "drafter" / "statistics"))  # small: devices have them too
    return [path for path in [*beside, *sorted(ours.glob(f"*/{name}"))] if path.is_file()]


def drafters_folder() -> Path | None:
    """Where the distribution has a folder for each drafter; None: it is not installed. Nothing of it is imported."""
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


_TYPES = {"contexts": "I32", "counts": "U8", "tokens": "I32", "chances": "U8"}


def ngrams_for(target_fingerprint: str, drafter: Path | None = None) -> NgramTable | None:
    path = find_ngrams(target_fingerprint, drafter)
    return load_ngrams(path) if path is not None else None


def load_ngrams(path: Path) -> NgramTable:
    if not path.is_file():
        raise CheckpointError(f"There is no table of n-grams at {path}.", hint="Make one with moa-train ngrams.")
    found = map_tensors(path)
    try:
        if {name: tensor.dtype for name, tensor in found.items()} != _TYPES:
            raise ValueError(f"tensors {sorted(found)}")
        contexts = found["contexts"].data.view(np.int32).reshape(-1, LONGEST_CONTEXT)
        counts, chances = np.array(found["counts"].data), np.array(found["chances"].data)
        return NgramTable(contexts, counts, np.array(found["tokens"].data.view(np.int32)), chances)
    except ValueError as error:
        what = f"{path} holds no table of n-grams ({error})."
        raise CheckpointError(what, hint="Make it again with moa-train ngrams.") from None


def write_ngrams(path: Path, arrays: Mapping[str, npt.NDArray[Any]], target_fingerprint: str) -> None:
    """Writes the arguments of an `NgramTable`, by name."""
    with whole_checkpoint(path, "table of n-grams") as partial:
        write_tensors(partial, arrays, {NGRAMS_TARGET_KEY: target_fingerprint})


CONFIDENCE_FILE = "confidence.json"
FINGERPRINT_KEY = "drafter_fingerprint"


def confidence_for(fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Confidence | None:
    """A drafter's confidence, from the file beside it or among the package's; None: it was never measured."""

    def read(content: dict[str, Any]) -> Confidence:
        return Confidence({origin: [float(share) for share in content["curves"][origin]] for origin in TokenOrigin})

    found = find_record(_candidates(CONFIDENCE_FILE, drafter, folder), {FINGERPRINT_KEY: fingerprint}, read)
    return found and found[1]


def write_confidence(path: Path, confidence: Confidence, fingerprint: str) -> None:
    curves = {origin: [round(share, 4) for share in shares] for origin, shares in confidence.shares.items()}
    write_record(path, {FINGERPRINT_KEY: fingerprint, "curves": curves})
