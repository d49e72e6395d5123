"""The parts of a target that a device needs to draft, as files of their own: embeddings, head, reused layers, text.

A folder that holds them beside config.json and the tokenizer reads like a model's folder, as long as nothing else is
asked of it. int8 tensors have a scale for each row beside them (`NAME.scale`); `load_part` multiplies it back in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from moa_shared.errors import ModelSourceError
from moa_shared.models.cache import disk_full, is_disk_full
from moa_shared.models.files import ModelFiles
from moa_shared.models.loading import EMBEDDINGS, HEAD, SCALE, load_part, part_names

LEVELS = 127  # of int8
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, width] any float type to int8 of the same shape, and float32 scales [rows]."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / LEVELS
    safe = torch.where(scales > 0, scales, torch.ones(()))
    return (wide / safe[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), scales


def write_part(files: ModelFiles, names: Sequence[str], path: Path, *, int8: bool) -> None:
    """Writes tensors in bfloat16, or their matrices in int8.

    Raises:
        DiskFullError: no room.
        ModelSourceError: the weights cannot be read.
    """
    tensors = load_part(files, names, torch.bfloat16)
    if int8:
        for name in [name for name, tensor in tensors.items() if tensor.dim() == 2]:
            tensors[name], tensors[name + SCALE] = quantise_rows(tensors[name])
    _write(tensors, path)


def layer_names(files: ModelFiles, count: int) -> list[str]:
    """The tensors of the last `count` layers, and the final norm."""
    return [name for name in part_names(files, count) if name not in (EMBEDDINGS, HEAD)]


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except (OSError, SafetensorError) as error:
        if is_disk_full(error):
            raise disk_full(path.parent, None, path.name) from None
        raise ModelSourceError(f"{path} cannot be written ({error}).", hint="Check the cache folder.") from None
