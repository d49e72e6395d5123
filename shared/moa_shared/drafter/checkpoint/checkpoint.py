"""Drafter checkpoints: the authors' 29 tensors in one safetensors file, our configuration as JSON in its metadata.

Beyond the 29 a file may hold `output_norm.weight` and `draft_ids`. Nothing is ever unpickled; every shape is checked.
What only a server runs may be in a file of its own next to that of the device's half, which both ends name by its hash;
it holds the hash of the other. Reading needs only numpy.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from moa_kernels import KernelError

from moa_shared.bfloat16 import widen_bfloat16
from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import DeviceHalf, MakeRows, NewState
from moa_shared.drafter.kinds.layout import PROJECTION
from moa_shared.drafter.layers.weights import INT8, ArrayWeights, StoredTensors, TargetParts
from moa_shared.errors import CheckpointError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models.network.network import Weights
from moa_shared.models.storage.tensors import FileTensor, map_tensors, read_metadata, write_tensors
from moa_shared.programs.atomic import whole_file

if TYPE_CHECKING:
    import torch

SERVER_HALF_FILE = "projection.safetensors"
SERVER_HALF_KEY = "moa_server_half_sha256"  # in the metadata of the device's half
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEAR_ZERO = np.float32(0.02)  # transformers' initializer_range, which the authors' norm weights got


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
            if name.startswith(config.traits.server_tensors(config)):
                digest.update(name.encode() + np.ascontiguousarray(self.tensors[name]).tobytes())
        return digest.hexdigest()

    def check_server_half(self) -> None:
        """Raises CheckpointError where only the device's half is here."""
        if self.config.state_entries and PROJECTION not in self.tensors:
            raise CheckpointError(
                "This is the device's half of a drafter, as devices fetch it: a server needs both.",
                hint="Name the drafter as it was published.",
            )

    def rows(self, weights: str = INT8) -> MakeRows:
        """What makes wire rows, [tokens, memory width], from keys and values, the last hidden state or states."""
        self.check_server_half()
        with _computable():
            return self.config.traits.rows(self.config, ArrayWeights(self.tensors), weights)

    def torch_rows(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        self.check_server_half()
        return self.config.traits.torch_rows(self.config, self.torch_tensors(), dtype, device)

    def states(
        self,
        target: Weights,
        weights: str = INT8,
        *,
        parts: TargetParts | None = None,
    ) -> NewState:
        """What makes a conversation's drafter, the device's half; arguments as of `DeviceHalf`."""
        with _computable():
            own = ArrayWeights(self.tensors)
            return self.config.traits.states(DeviceHalf(self.config, own, target, weights, parts))

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        import torch

        return {name: torch.from_numpy(tensor) for name, tensor in self.tensors.items()}


@contextlib.contextmanager
def _computable() -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        raise ModelSourceError(f"No drafts can be computed with these weights. {error}") from error


def load_checkpoint(path: Path, config: DrafterConfig | None = None) -> Checkpoint:
    """Reads a checkpoint, with the server's half where that is next to it; tensors are mapped, and widened on request.

    `config`: for a file without our metadata (the authors' own).
    """
    if not path.is_file():
        raise NotFoundError(f"There is no drafter checkpoint {path}.", hint="Check the path given with --drafter.")
    try:
        metadata = read_metadata(path)
        server_half = _map_server_half(path, metadata)
        tensors = StoredTensors({**map_tensors(path), **(server_half or {})})
    except (ModelSourceError, ValueError) as error:
        raise CheckpointError(
            f"The drafter checkpoint {path} is corrupt or truncated ({error.__cause__ or error})."
        ) from None
    if config is None:
        if CONFIG_KEY not in metadata:
            raise CheckpointError(
                f"The drafter checkpoint {path} does not contain its configuration.",
                hint="Put the config.json that was published with it next to it.",
            )
        config = DrafterConfig.from_json(metadata[CONFIG_KEY])
    _check(path, config, tensors, absent=config.traits.server_tensors(config) if server_half is None else ())
    return Checkpoint(config, tensors, _sha256_of(path))


def save_checkpoint(path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes a checkpoint of float32, or bit patterns of bfloat16 as uint16; `draft_ids` are int32."""
    _check(path, config, tensors)
    with whole_checkpoint(path, "checkpoint") as partial:
        write_tensors(partial, tensors, {CONFIG_KEY: config.to_json()})


def save_halves(folder: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Writes a checkpoint into an empty folder, what only servers run into a second file; gives the devices' file."""
    path = folder / DRAFTER_FILE
    if not config.state_entries:
        save_checkpoint(path, config, tensors)
        return path
    _check(path, config, tensors)
    names = config.traits.server_tensors(config)
    of_server = {name: tensor for name, tensor in tensors.items() if name.startswith(names)}
    of_device = {name: tensor for name, tensor in tensors.items() if name not in of_server}
    with whole_checkpoint(folder / SERVER_HALF_FILE, "checkpoint") as partial:
        write_tensors(partial, of_server, {})
    metadata = {CONFIG_KEY: config.to_json(), SERVER_HALF_KEY: _sha256_of(folder / SERVER_HALF_FILE)}
    with whole_checkpoint(path, "checkpoint") as partial:
        write_tensors(partial, of_device, metadata)
    return path


def _check(
    path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]], absent: tuple[str, ...] = ()
) -> None:
    """Raises CheckpointError for other tensors than `config` asks for; `absent`: beginnings of those that may lack."""
    shapes = {name: shape for name, shape in config.shapes().items() if not name.startswith(absent)}
    for name, shape in shapes.items():
        if name not in tensors:
            raise CheckpointError(f"The drafter checkpoint {path} lacks the tensor {name}.")
        tensor = tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"In the drafter checkpoint {path} {name} has shape {tensor.shape}, expected {shape}."
            )
        if name != "draft_ids" and not is_finite(tensor):
            raise CheckpointError(f"In the drafter checkpoint {path} {name} holds values that are not numbers.")
    extra = sorted(set(tensors) - set(shapes))
    if extra:
        raise CheckpointError(f"The drafter checkpoint {path} holds an unknown tensor {extra[0]}.")
    if config.draft_vocab:
        ids = tensors["draft_ids"]
        if ids.dtype != np.int32 or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
            raise CheckpointError(f"The drafter checkpoint {path} has draft ids outside the vocabulary.")


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
        raise CheckpointError(
            f"{half} is not the server's half of {path.name}.", hint="Name the drafter as it was published."
        )
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
        if error.errno in _FULL:
            raise DiskFullError(message) from None
        raise CheckpointError(message, hint="Choose a folder that can be written.") from None


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what was measured for a checkpoint, as JSON, whole or not at all."""
    with whole_checkpoint(path, "confidence") as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def fresh_tensors(
    config: DrafterConfig, seed: int, draft_ids: npt.NDArray[np.int32] | None = None, *, norms_near_zero: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Random tensors by the checkpoint's names, float32. Linear weights have deviation 1 / sqrt(inputs).

    `draft_ids`: None: the first tokens. `norms_near_zero`: the authors' mistake; otherwise norms start at one.
    """
    generator = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, shape in config.shapes().items():
        if name == "draft_ids":
            tensors[name] = draft_ids if draft_ids is not None else np.arange(shape[0], dtype=np.int32)
        elif "norm" in name:
            near_zero = _NEAR_ZERO * generator.standard_normal(shape, np.float32) if norms_near_zero else None
            tensors[name] = np.ones(shape, np.float32) if near_zero is None else near_zero
        elif name.endswith(".bias"):
            tensors[name] = np.zeros(shape, np.float32)
        else:
            tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
    return tensors
