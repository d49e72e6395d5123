"""`WeightReader`: the tensors of a target by their Hugging Face names, whatever kind of file they are in.

Reads GGUF files, safetensors (float32, float16, bfloat16) and the parts that devices fetch. Files are mapped: opening
costs milliseconds, and only what is asked for is read. Needs numpy only. Invariant: no number that is given out is
infinite or not a number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import QuantisedMatrix

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.entry import is_gguf
from moa_shared.models.gguf.header import read_header
from moa_shared.models.gguf.names import added_offset, hugging_face_name, paired_heads, paired_places, unpair_rows
from moa_shared.models.network.layer_sizes import unread_tensors
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tensors import (
    BF16,
    BLOCKS,
    BLOCKS_END,
    F16,
    F32,
    SCALES_END,
    Bytes,
    FileTensor,
    Floats,
    TensorFormat,
    are_finite,
    drop_pages,
    expert_parts,
    known_name,
    map_file,
    map_tensors,
    take_mxfp4,
    to_float32,
)

EMBEDDINGS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYER_EMBEDDINGS = "model.embed_tokens_per_layer.weight"  # of all layers side by side, for each token
LAYER_PROJECTION = "model.per_layer_model_projection.weight"
LAYER_PROJECTION_NORM = "model.per_layer_projection_norm.weight"
_TEXT_PARTS = ("model.language_model.", "language_model.")  # how the names of a text's model begin in a larger one
MAPPED_BYTES = 16 << 20  # of files that may stay in memory while a model is packed
_FLOATS = {"F32": F32, "F16": F16, "BF16": BF16}
_REFETCH = "Fetch the model again."
_CORRUPT = "The file is truncated or corrupt: delete it and fetch the model again."


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor in its file: raw uint8 [..., bytes of a row]."""

    stored: TensorFormat
    shape: tuple[int, ...]
    source: Bytes  # the bytes in the file that it is taken from
    heads: int = 0  # of paired rows; 0: none are paired
    offset: float = 0.0  # what the file has added to the numbers
    take: Callable[[Bytes], Bytes] | None = None  # how it is taken, where it is a part of `source`
    scales: Bytes | None = None  # of gpt-oss's blocks, which are in a tensor of their own

    @property
    def raw(self) -> Bytes:
        return self.source if self.take is None else self.take(self.source)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.stored.row_bytes(self.shape[-1])


class WeightReader:
    """The weights of a model, or those parts of them that a device has; ModelSourceError where they cannot be read."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._tensors: dict[str, _Stored] = {}
        gguf = [path for path in files.weights if is_gguf(path)]
        for path in gguf:
            self._tensors.update(_open_gguf(path, files))
        self._tensors.update(_open_safetensors([path for path in files.weights if path not in gguf]))
        self._sources = {id(tensor.source.base): tensor.source for tensor in self._tensors.values()}  # one a file
        turned, whole = files.config.get("model_type") == "gpt_oss", self._tensors
        self._tensors = {}
        unread = unread_tensors(files.config)
        for name, tensor in whole.items():
            if name not in unread:
                self._tensors |= _apart(name, tensor, turned=turned)
        self._tied = HEAD not in self._tensors and bool(files.config.get("tie_word_embeddings", False))
        self._looked_at = 0  # bytes since the pages were dropped

    @property
    def config(self) -> Mapping[str, Any]:
        return self._files.config

    def names(self) -> list[str]:
        """The tensors that are stored; a tied head is not among them."""
        return list(self._tensors)

    def __contains__(self, name: str) -> bool:
        return self._alias(name) in self._tensors

    @property
    def has_own_head(self) -> bool:
        return HEAD in self._tensors and not self._files.config.get("tie_word_embeddings", False)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def format_of(self, name: str) -> str:
        """How a tensor is stored: "q4_1", "q8_0", "f32" and so on."""
        return self._find(name).stored.name

    def stored_bytes(self, name: str) -> int:
        return self._find(name).nbytes

    def stored(self, name: str) -> tuple[str, Bytes, int]:
        """Its format, its rows' bytes as its file has them (mapped), and how many heads of paired rows it has."""
        tensor = self._find(name)
        return tensor.stored.name, tensor.raw, tensor.heads

    def blocks(self, name: str) -> QuantisedMatrix | None:
        """A matrix in blocks as the file has it, rows in transformers' order; None in formats that the kernels lack."""
        tensor = self._find(name)
        if tensor.stored.name not in BLOCKS or len(tensor.shape) != 2:
            return None
        raw = tensor.raw
        self._require_finite(name, tensor.stored, raw)
        raw = raw.reshape(tensor.shape[0], tensor.shape[1] // tensor.stored.values, tensor.stored.size)
        return QuantisedMatrix(tensor.stored.name, unpair_rows(raw, tensor.heads) if tensor.heads else raw)

    def array(self, name: str) -> Floats:
        """A tensor in float32, a new array that the caller may change."""
        tensor = self._find(name)
        values = self._widen(name, tensor.stored, tensor.raw)
        if tensor.offset:
            values -= np.float32(tensor.offset)
        return unpair_rows(values, tensor.heads) if tensor.heads else values

    def rows(self, name: str, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Floats:
        """Some rows of a matrix in float32: [ids, width]."""
        tensor = self._find(name)
        places = np.asarray(ids, np.int64)
        if tensor.heads:
            places = paired_places(places, tensor.shape[0], tensor.heads)
        return self._widen(name, tensor.stored, tensor.raw[places])

    def check(self, name: str) -> int:
        """Looks at a tensor's scales and plain numbers, of rarer formats not yet; the bytes that it takes."""
        tensor = self._find(name)
        self._require_finite(name, tensor.stored, tensor.raw)
        return tensor.nbytes

    def drop_pages(self) -> None:
        """Gives the memory of the mapped files' pages back: what was packed is not needed twice."""
        self._looked_at = 0
        for source in self._sources.values():
            drop_pages(source)

    def _widen(self, name: str, stored: TensorFormat, raw: Bytes) -> Floats:
        self._require_finite(name, stored, raw)
        values = to_float32(stored, raw)
        if stored not in (F32, F16, BF16) and stored.name not in BLOCKS and not bool(np.isfinite(values).all()):
            raise self._not_finite(name)
        return values

    def _require_finite(self, name: str, stored: TensorFormat, raw: Bytes) -> None:
        self._looked_at += raw.nbytes
        if self._looked_at > MAPPED_BYTES:
            self.drop_pages()
        if not are_finite(stored, raw):
            raise self._not_finite(name)

    def _not_finite(self, name: str) -> ModelSourceError:
        return ModelSourceError(
            f"The tensor {name} of {self._files.target_id} holds numbers that are not finite.", hint=_CORRUPT
        )

    def _find(self, name: str) -> _Stored:
        tensor = self._tensors.get(self._alias(name))
        if tensor is None:
            raise ModelSourceError(f"The weights of {self._files.target_id} hold no tensor {name}.", hint=_REFETCH)
        return tensor

    def _alias(self, name: str) -> str:
        return EMBEDDINGS if name == HEAD and self._tied else name


def _open_gguf(path: Path, files: ModelFiles) -> dict[str, _Stored]:
    header = read_header(path, arrays=False)
    data = map_file(path)
    tensors, family = {}, str(files.config["model_type"])
    for name, entry in header.tensors.items():
        theirs = hugging_face_name(name, family)
        known = None if theirs is None else known_name(theirs)
        if known is not None:  # others were refused when the cache entry was made, or are in its config.json
            raw = data[entry.offset : entry.offset + entry.size]
            raw = raw.reshape(*entry.shape[:-1], entry.stored.row_bytes(entry.shape[-1]))
            heads, offset = paired_heads(name, files.config), added_offset(name, family)
            tensors[known] = _Stored(entry.stored, entry.shape, raw, heads, offset)
    return tensors


def _open_safetensors(paths: Sequence[Path]) -> dict[str, _Stored]:
    found = {name: (path, tensor) for path in paths for name, tensor in map_tensors(path).items()}
    tensors = {}
    for name, (path, tensor) in found.items():
        base = name.removesuffix(BLOCKS_END)
        if base != name and f"{base}{SCALES_END}" in found:
            tensors[name] = _interpret_mxfp4(path, name, tensor, found[f"{base}{SCALES_END}"][1])
        elif f"{name.removesuffix(SCALES_END)}{BLOCKS_END}" not in found:
            base, stored = _interpret(path, name, tensor)
            tensors[base] = stored
    text = {name for name in tensors if name.startswith(_TEXT_PARTS)}
    if text:  # of a model that sees or hears too
        tensors = {name: tensor for name, tensor in tensors.items() if name in text or name == HEAD}
    return {known_name(name): tensor for name, tensor in tensors.items()}


def _interpret_mxfp4(path: Path, name: str, blocks: FileTensor, scales: FileTensor) -> _Stored:
    """gpt-oss's experts in MXFP4: U8 [experts, outputs, groups, 16] and [experts, outputs, groups]."""
    shape = blocks.shape[:3]
    if blocks.dtype != "U8" or scales.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape != (*scales.shape, 16):
        raise ModelSourceError(
            f"The tensor {name} of {path} is {blocks.dtype} {list(blocks.shape)}, with scales {list(scales.shape)}.",
            hint=_REFETCH,
        )
    source, own = blocks.data.reshape(*shape[:2], -1), scales.data.reshape(shape)
    return _Stored(BLOCKS["mxfp4"], (*shape[:2], 32 * shape[2]), source, scales=own)


def _apart(name: str, whole: _Stored, *, turned: bool) -> dict[str, _Stored]:
    """A tensor of all experts of a layer as one for each; others as they are."""
    parts = {
        part.name: _Stored(
            whole.stored,
            part.shape,
            whole.source,
            take=part.take if whole.scales is None else partial(take_mxfp4, part.take, whole.scales),
        )
        for part in expert_parts(name, whole.shape, turned=turned)
    }
    return parts or {name: whole}


def _interpret(path: Path, name: str, tensor: FileTensor) -> tuple[str, _Stored]:
    """A plain tensor, or a part in blocks: `NAME.q4_1`, `NAME.q6_k` and so on, uint8 [outputs, blocks, bytes]."""
    stored = _FLOATS.get(tensor.dtype)
    if stored is not None:
        shape = tensor.shape or (1,)
        return name, _Stored(stored, shape, tensor.data.reshape(*shape[:-1], stored.row_bytes(shape[-1])))
    base, _, kind = name.rpartition(".")
    blocks = BLOCKS.get(kind) if tensor.dtype == "U8" else None
    if blocks is None or len(tensor.shape) != 3 or tensor.shape[-1] != blocks.size:
        raise ModelSourceError(
            f"The tensor {name} of {path} is {tensor.dtype} {list(tensor.shape)}, which moa does not read.",
            hint="Use weights in float32, float16 or bfloat16, or a GGUF file.",
        )
    outputs, groups, _ = tensor.shape
    return base, _Stored(blocks, (outputs, groups * blocks.values), tensor.data.reshape(outputs, groups * blocks.size))


_COUNTS = ("num_experts", "num_local_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts")


def idle_share(config: Mapping[str, Any]) -> Fraction:
    """The part of all experts that a step of one row does not read; 0: the model has none."""
    count = next((int(config[key]) for key in _COUNTS if config.get(key)), 0)
    chosen = next((int(config[key]) for key in _CHOSEN if config.get(key)), count)
    return Fraction(count - chosen, count) if chosen < count else Fraction(0)
