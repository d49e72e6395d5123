"""Drafter checkpoints: the authors' 29 tensors in one safetensors file, our configuration as JSON in its metadata.

Beyond the 29 a file may hold `output_norm.weight` and `draft_ids`. Nothing is ever unpickled; every shape is checked.
Reading needs only numpy; torch is imported when a torch encoder is asked for.
"""

from __future__ import annotations

import contextlib
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
from moa_shared.drafter.baseline.decoder import BaselineDecoder
from moa_shared.drafter.baseline.state import BaselineState
from moa_shared.drafter.checkpoint.config import DFLASH, EAGLE3, MOA, OF_STATES, DrafterConfig
from moa_shared.drafter.checkpoint.halves import SERVER_HALF_FILE, SERVER_HALF_KEY, map_server_half, sha256_of
from moa_shared.drafter.checkpoint.shapes import ENCODER_TENSORS, expected_shapes, server_tensors
from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.checkpoint.stored_tensors import StoredTensors
from moa_shared.drafter.checkpoint.weights import ArrayWeights
from moa_shared.drafter.checkpoint.writing import whole_checkpoint
from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.dflash.decoder import BlockDecoder
from moa_shared.drafter.dflash.state import BlockState
from moa_shared.drafter.eagle3.decoder import Eagle3Decoder
from moa_shared.drafter.kernel_encoder import KernelEncoder
from moa_shared.drafter.layers.arithmetic import INT8, Rows
from moa_shared.drafter.layers.target_parts import TargetParts
from moa_shared.drafter.projection import PROJECTION, StateProjection
from moa_shared.drafter.state import DraftState
from moa_shared.errors import CheckpointError, ModelSourceError, NotFoundError
from moa_shared.models.network.layers import Weights
from moa_shared.models.tensors.safetensors import map_tensors, read_metadata, write_tensors

if TYPE_CHECKING:
    import torch

    from moa_shared.drafter.encoder import MemoryEncoder

NewState = Callable[[], DraftState | BaselineState | BlockState]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A drafter's trained tensors.

    Args:
        config: its shapes.
        tensors: by the authors' names, float32; `draft_ids` int32.
        fingerprint: hexadecimal sha256 of the file; empty where there is no file.
    """

    config: DrafterConfig
    tensors: Mapping[str, npt.NDArray[Any]]
    fingerprint: str

    @property
    def memory_fingerprint(self) -> str:
        """Hexadecimal sha256 of the memory encoder; drafters that have it in common read the same memory rows.

        Empty for baselines, which have none.
        """
        if self.config.kind != MOA:
            return ""
        config, digest = self.config, hashlib.sha256()
        read = [config.state_entries] if config.state_entries else []
        digest.update(json.dumps([config.lsa, config.lsa_heads, config.memory_rope, *read], sort_keys=True).encode())
        for name in sorted(self.tensors):
            if name.startswith(ENCODER_TENSORS):
                digest.update(name.encode() + np.ascontiguousarray(self.tensors[name]).tobytes())
        return digest.hexdigest()

    def check_server_half(self) -> None:
        """Raises CheckpointError where only the device's half is here."""
        if self.config.state_entries and PROJECTION not in self.tensors:
            raise CheckpointError(
                "This is the device's half of a drafter, as devices fetch it: a server needs both.",
                hint="Name the drafter as it was published.",
            )

    def rows(self, weights: str = INT8) -> Callable[[Rows], Rows]:
        """A function that makes wire rows, [tokens, memory width], from what `config.reads_last_hidden` says.

        Drafters with `config.state_entries` make them from those states, [tokens, entries * state width].

        Raises:
            ConfigError: weights other than "int8" and "float32".
        """
        if self.config.kind in OF_STATES:
            self.check_server_half()
            with _computable():
                return StateProjection(self.config, ArrayWeights(self.tensors), weights)
        if self.config.kind != MOA:
            return lambda hidden: hidden[:, : self.config.memory_width]
        with _computable():
            encoder = KernelEncoder(self.config, ArrayWeights(self.tensors), weights)
        if self.config.state_entries:
            return encoder.encode_states
        return encoder.project if self.config.reads_last_hidden else encoder.encode

    def states(
        self,
        target: Weights,
        weights: str = INT8,
        *,
        parts: TargetParts | None = None,
        states_from: int | None = None,
    ) -> NewState:
        """A function that makes a conversation's drafter, of any kind; arguments and errors as of `decoder`."""
        if self.config.kind == DFLASH:
            with _computable():
                blocks = BlockDecoder(self.config, ArrayWeights(self.tensors), target, weights, parts=parts)
            return lambda: BlockState(blocks)
        if self.config.kind != MOA:
            kind = Eagle3Decoder if self.config.kind == EAGLE3 else BaselineDecoder
            with _computable():
                other = kind(self.config, ArrayWeights(self.tensors), target, weights)
            return lambda: BaselineState(other)
        decoder = self.decoder(target, weights, parts=parts, states_from=states_from)
        return lambda: DraftState(decoder)

    def decoder(
        self,
        target: Weights,
        weights: str = INT8,
        *,
        parts: TargetParts | None = None,
        states_from: int | None = None,
    ) -> DraftDecoder:
        """The client's half.

        Args:
            target: its embeddings and head, and the reused layers with the final norm.
            weights: "int8", or "float32" for a reference.
            parts, states_from: as of `DraftDecoder`.

        Raises:
            ConfigError: other weights.
            ModelSourceError: a part of the target is missing, does not fit, or cannot be used.
        """
        with _computable():
            own = ArrayWeights(self.tensors)
            return DraftDecoder(self.config, own, target, weights, parts=parts, states_from=states_from)

    def torch_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors for training."""
        import torch

        return {name: torch.from_numpy(tensor) for name, tensor in self.tensors.items()}

    def encoder(self, dtype: torch.dtype, device: torch.device | None = None) -> MemoryEncoder:
        """The server's half in torch."""
        from moa_shared.drafter.encoder import load_encoder

        return load_encoder(self.config, self.torch_tensors(), dtype, device)

    def torch_rows(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """As `rows`, in torch."""
        if self.config.kind in OF_STATES:
            from moa_shared.drafter.torch_projection import torch_projection

            self.check_server_half()
            return torch_projection(self.config, self.torch_tensors(), dtype, device)
        if self.config.kind != MOA:
            return lambda hidden: hidden[:, : self.config.memory_width]
        encoder = self.encoder(dtype, device)
        if self.config.state_entries:
            return encoder.encode_states
        return encoder.project if self.config.reads_last_hidden else encoder.encode


@contextlib.contextmanager
def _computable() -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        raise ModelSourceError(f"No drafts can be computed with these weights. {error}") from error


def load_checkpoint(path: Path, config: DrafterConfig | None = None) -> Checkpoint:
    """Reads a checkpoint, with the server's half where that is next to it; tensors are mapped, and widened on request.

    Args:
        config: for a file without our metadata (the authors' own).

    Raises:
        NotFoundError: no such file.
        CheckpointError: corrupt, truncated, or not the tensors that its configuration asks for.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no drafter checkpoint {path}.", hint="Check the path given with --drafter.")
    try:
        metadata = read_metadata(path)
        server_half = map_server_half(path, metadata)
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
    _check(path, config, tensors, absent=server_tensors(config) if server_half is None else ())
    return Checkpoint(config, tensors, sha256_of(path))


def save_checkpoint(path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes a checkpoint whole or not at all.

    Args:
        tensors: float32, or the bit patterns of bfloat16 as uint16; `draft_ids` int32.

    Raises:
        CheckpointError: not the tensors that `config` asks for, or the path cannot be written.
        DiskFullError: no room.
    """
    _check(path, config, tensors)
    with whole_checkpoint(path, "checkpoint") as partial:
        write_tensors(partial, tensors, {CONFIG_KEY: config.to_json()})


def save_halves(folder: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Writes a checkpoint into an empty folder: as `save_checkpoint`, but for what only servers run of a projection.

    Returns:
        the file for devices, which is the drafter's: the only one where all of it runs there.
    """
    path = folder / DRAFTER_FILE
    if not config.state_entries:
        save_checkpoint(path, config, tensors)
        return path
    _check(path, config, tensors)
    of_server = {name: tensor for name, tensor in tensors.items() if name.startswith(server_tensors(config))}
    of_device = {name: tensor for name, tensor in tensors.items() if name not in of_server}
    with whole_checkpoint(folder / SERVER_HALF_FILE, "checkpoint") as partial:
        write_tensors(partial, of_server, {})
    metadata = {CONFIG_KEY: config.to_json(), SERVER_HALF_KEY: sha256_of(folder / SERVER_HALF_FILE)}
    with whole_checkpoint(path, "checkpoint") as partial:
        write_tensors(partial, of_device, metadata)
    return path


def _check(
    path: Path, config: DrafterConfig, tensors: Mapping[str, npt.NDArray[Any]], absent: tuple[str, ...] = ()
) -> None:
    """Raises CheckpointError for other tensors than `config` asks for; `absent`: beginnings of those that may lack."""
    shapes = {name: shape for name, shape in expected_shapes(config).items() if not name.startswith(absent)}
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
    """Whether all numbers are finite floats."""
    if tensor.dtype == np.uint16:
        tensor = widen_bfloat16(tensor)
    return tensor.dtype.kind == "f" and bool(np.isfinite(tensor).all())
