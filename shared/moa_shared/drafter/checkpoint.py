"""Drafter checkpoints: the authors' 29 tensors in one safetensors file, our configuration as JSON in its metadata.

Beyond the 29 a file may hold `output_norm.weight` and `draft_ids`. Nothing is ever unpickled; every shape is checked.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from moa_shared.drafter.baseline import BaselineDecoder, baseline_shapes
from moa_shared.drafter.baseline_state import BaselineState
from moa_shared.drafter.config import MOA, DrafterConfig
from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.encoder import MemoryEncoder
from moa_shared.drafter.state import DraftState
from moa_shared.drafter.stored_layers import layer_shapes
from moa_shared.errors import CheckpointError, DiskFullError, NotFoundError
from moa_shared.models.packed_linear import pack_linears
from moa_shared.shipped import CONFIG_KEY

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A drafter's trained tensors.

    Args:
        config: its shapes.
        tensors: by the authors' names.
        fingerprint: hexadecimal sha256 of the file; empty where there is no file.
    """

    config: DrafterConfig
    tensors: Mapping[str, torch.Tensor]
    fingerprint: str

    def encoder(self, dtype: torch.dtype) -> MemoryEncoder:
        """The server's half."""
        encoder = MemoryEncoder(self.config)
        names = {name: name for name in self.tensors if name.startswith(("layer_self_attention.", "Ekv2E."))}
        names["memory_norm.weight"] = "cross_attention.input_layernorm.weight"
        names["memory_keys.weight"] = "cross_attention.self_attn.k_proj.weight"
        names["memory_values.weight"] = "cross_attention.self_attn.v_proj.weight"
        encoder.load_state_dict({ours: self.tensors[theirs] for ours, theirs in names.items()})
        encoder = encoder.to(dtype).eval().requires_grad_(False)
        pack_linears(encoder)
        return encoder

    def rows(self, dtype: torch.dtype, device: torch.device | None = None) -> Callable[[torch.Tensor], torch.Tensor]:
        """Makes rows as the wire has them, [tokens, memory width], of what `config.reads_last_hidden` says."""
        if self.config.kind != MOA:
            return lambda hidden: hidden[:, : self.config.memory_width]
        encoder = self.encoder(dtype).to(device)
        return encoder.project if self.config.reads_last_hidden else encoder.encode

    def states(
        self,
        dtype: torch.dtype,
        embeddings: torch.Tensor,
        head: torch.Tensor,
        reused: list[nn.Module] | None = None,
        final_norm: nn.Module | None = None,
    ) -> Callable[[], DraftState | BaselineState]:
        """What makes a conversation's drafter, of any kind; arguments as of `decoder`."""
        if self.config.kind != MOA:
            baseline = BaselineDecoder(self.config, self.tensors, dtype, embeddings, head)
            return lambda: BaselineState(baseline)
        decoder = self.decoder(dtype, embeddings, head, reused, final_norm)
        return lambda: DraftState(decoder)

    def decoder(
        self,
        dtype: torch.dtype,
        embeddings: torch.Tensor,
        head: torch.Tensor,
        reused: list[nn.Module] | None = None,
        final_norm: nn.Module | None = None,
    ) -> DraftDecoder:
        """The client's half, over the target's frozen parts.

        Args:
            dtype: of the weights: float32, bfloat16, or int8.

        Raises:
            ConfigError: int8, and torch has no such kernels for this processor.
        """
        return DraftDecoder(self.config, self.tensors, dtype, embeddings, head, reused or (), final_norm)


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that a checkpoint of this configuration holds."""
    if config.kind != MOA:
        return baseline_shapes(config)
    hidden, width = config.hidden_size, config.kv_width
    query = config.target_heads * config.target_head_dim
    sizes = {
        "self_attention": (hidden, query, config.sa_kv_heads * config.target_head_dim, config.sa_mlp),
        "cross_attention": (hidden, query, config.ca_kv_heads * config.target_head_dim, config.ca_mlp),
        "layer_self_attention": (width, width, config.lsa_kv_heads * (width // config.lsa_heads), config.lsa_mlp),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    if config.lsa:
        shapes = {"Ekv2E.weight": (hidden, width), "Ekv2E.bias": (hidden,)}
    else:
        del sizes["layer_self_attention"]
    for name, (model, queries, keys, inner) in sizes.items():
        shapes |= layer_shapes(name, model, queries, keys, inner)
    if config.output_norm:
        shapes["output_norm.weight"] = (hidden,)
    if config.draft_vocab:
        shapes["draft_ids"] = (config.draft_vocab,)
    return shapes


def load_checkpoint(path: Path, config: DrafterConfig | None = None) -> Checkpoint:
    """Reads a checkpoint.

    Args:
        config: for a file without our metadata (the authors' own).

    Raises:
        NotFoundError: no such file.
        CheckpointError: corrupt, truncated, or not the tensors that its configuration asks for.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no drafter checkpoint {path}.", hint="Check the path given with --drafter.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"The drafter checkpoint {path} is corrupt or truncated ({error}).") from None
    if config is None:
        if CONFIG_KEY not in metadata:
            raise CheckpointError(
                f"The drafter checkpoint {path} does not say its configuration.",
                hint="Load it with a configuration and save it again.",
            )
        config = DrafterConfig.from_json(metadata[CONFIG_KEY])
    _check(path, config, tensors)
    with path.open("rb") as opened:
        return Checkpoint(config, tensors, hashlib.file_digest(opened, "sha256").hexdigest())


def save_checkpoint(path: Path, config: DrafterConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a checkpoint whole or not at all (to a file beside it, then renamed).

    Raises:
        CheckpointError: not the tensors that `config` asks for, or a place that cannot be written.
        DiskFullError: no room.
    """
    _check(path, config, tensors)
    beside = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, beside, {CONFIG_KEY: config.to_json()}
        )
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        message = f"The checkpoint {path} cannot be written ({error})."
        full = getattr(error, "errno", None) in _FULL or any(f"os error {code}" in str(error) for code in _FULL)
        if full:
            raise DiskFullError(message) from None
        raise CheckpointError(message, hint="Choose a folder that can be written.") from None


def _check(path: Path, config: DrafterConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        if name not in tensors:
            raise CheckpointError(f"The drafter checkpoint {path} lacks the tensor {name}.")
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"In the drafter checkpoint {path} {name} has shape {tuple(tensors[name].shape)}, expected {shape}."
            )
        if name != "draft_ids" and not (tensors[name].is_floating_point() and bool(tensors[name].isfinite().all())):
            raise CheckpointError(f"In the drafter checkpoint {path} {name} holds values that are no numbers.")
    extra = sorted(set(tensors) - set(shapes))
    if extra:
        raise CheckpointError(f"The drafter checkpoint {path} holds an unknown tensor {extra[0]}.")
    if config.draft_vocab:
        ids = tensors["draft_ids"]
        if ids.dtype != torch.int32 or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
            raise CheckpointError(f"The drafter checkpoint {path} has draft ids outside the vocabulary.")
