"""Tensors as files hold them: number formats, safetensors files, and experts that one tensor holds together.

A tensor is raw bytes, `uint8 [..., bytes of a row]`; a format says how a row becomes numbers, with the results of the
`gguf` package and transformers to the last bit. Safetensors are mapped by a reader of our own: the package knows no
bfloat16 in numpy, and a process would end without a word where a mapped file shrinks.
Invariant: every tensor that a header names lies within its file and is as long as its shape and type say.
"""

import json
import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import FORMATS as BLOCK_FORMATS
from moa_kernels import KernelError, QuantisedMatrix, guard

from moa_shared.errors import ModelSourceError
from moa_shared.plain_text import parse_json
from moa_shared.protocol.memory_codec import widen_bfloat16

EMBEDDINGS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYER_EMBEDDINGS = "model.embed_tokens_per_layer.weight"  # of all layers side by side, for each token
LAYER_PROJECTION = "model.per_layer_model_projection.weight"
LAYER_PROJECTION_NORM = "model.per_layer_projection_norm.weight"
ON_THE_SERVER = (LAYER_EMBEDDINGS, LAYER_PROJECTION, LAYER_PROJECTION_NORM)  # layers with them run nowhere else

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How a row is stored: `values` numbers take `size` bytes."""

    name: str
    values: int
    size: int

    def row_bytes(self, width: int) -> int:
        if width % self.values:
            raise ValueError(f"a row of {width} numbers in {self.name}, which comes in blocks of {self.values}")
        return width // self.values * self.size


F32, F16, BF16 = TensorFormat("f32", 1, 4), TensorFormat("f16", 1, 2), TensorFormat("bf16", 1, 2)
I32 = TensorFormat("i32", 1, 4)  # of tokens
BLOCKS = {name: TensorFormat(name, item.values, item.size) for name, item in BLOCK_FORMATS.items()}  # of the kernels
CHECKED = {"f32", "f16", "bf16", *BLOCKS}  # whose numbers `are_finite` looks at


def to_float32(stored: TensorFormat, raw: Bytes) -> Floats:
    """[..., bytes of a row] -> [..., width] float32, a new array."""
    if stored in (F32, F16):
        return raw.view("<f4" if stored == F32 else "<f2").astype(np.float32)
    if stored == I32:
        return raw.view("<i4").astype(np.float32)
    if stored == BF16:
        return widen_bfloat16(raw.view("<u2"))
    if stored.name not in BLOCKS:
        return _by_gguf(stored, raw)
    try:
        values = _matrix(stored, raw).dequantised()
    except KernelError as error:
        raise ModelSourceError(str(error), hint="Install the gguf package, or moa with a C compiler.") from error
    return values.reshape(*raw.shape[:-1], values.shape[-1])


def are_finite(stored: TensorFormat, raw: Bytes) -> bool:
    """Whether no number is infinite or not a number. Formats other than ours are not looked at here."""
    if stored == F32:
        return bool(np.isfinite(raw.view("<f4")).all())
    if stored in (F16, BF16):
        exponent = 0x7C00 if stored == F16 else 0x7F80  # all ones: infinite, or not a number
        return not bool(((raw.view("<u2") & exponent) == exponent).any())
    if stored.name in BLOCKS:
        try:
            _matrix(stored, raw).check()
        except KernelError:
            return False
    return True


def _matrix(stored: TensorFormat, raw: Bytes) -> QuantisedMatrix:
    return QuantisedMatrix(stored.name, raw.reshape(-1, raw.shape[-1] // stored.size, stored.size))


def _by_gguf(stored: TensorFormat, raw: Bytes) -> Floats:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        hint = "Install the gguf package, or use a file in another format, Q4_K_M for one."
        raise ModelSourceError(f"Weights in {stored.name.upper()} cannot be read here ({error}).", hint=hint) from error
    if not raw.size:  # which the package cannot do
        return np.empty((*raw.shape[:-1], raw.shape[-1] // stored.size * stored.values), np.float32)
    values: Floats = dequantize(raw, GGMLQuantizationType[stored.name.upper()])
    return np.ascontiguousarray(values, np.float32)


_METADATA = "__metadata__"
# In numpy; of bfloat16 the bit patterns.
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_CODES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32", "uint16": "BF16"}
_UNREADABLE = (
    "Error: {path} can no longer be read: it was shortened or overwritten while it was in use, or its disk failed. "
    "Put the whole file back and start again."
)
CORRUPT = "The file is truncated or corrupt: delete it and fetch the model again."


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a file: its type's code ("F32", "BF16", "U8" ...), its shape, and its bytes, mapped."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def map_tensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of a file by name; ModelSourceError: it cannot be read, or is no whole safetensors file."""
    try:
        header, body = _split(map_file(path))
        tensors = {str(name): _tensor(entry, body) for name, entry in header.items() if name != _METADATA}
        used = sum(len(tensor.data) for tensor in tensors.values())
        if used != len(body):
            raise ValueError(f"{len(body)} bytes of tensors, expected {used}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelSourceError(f"The weights {path} cannot be read ({error}).", hint=CORRUPT) from error
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    try:
        header, _ = _split(map_file(path))
        return {str(key): str(value) for key, value in header.get(_METADATA, {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ModelSourceError(f"The header of {path} cannot be read ({error}).", hint=CORRUPT) from error


def map_file(path: Path, *, large_pages: bool = False) -> Bytes:
    """The bytes of a file, read when they are looked at; read-only.

    Where they can no longer be read then, the process ends with a sentence and exit code 74. `large_pages`: of 2 MiB,
    where the system has these for files and does not hold the file in smaller ones.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:  # what cannot be mapped
            return np.empty(0, np.uint8)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a system without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    guard(mapping, _UNREADABLE.format(path=path))
    return np.frombuffer(mapping, np.uint8)


def drop_pages(data: Bytes) -> None:
    """Gives the memory of a mapped file's pages back; they are read again when they are looked at."""
    source: Any = data
    while not isinstance(source, mmap.mmap) and source is not None:
        source = source.obj if isinstance(source, memoryview) else getattr(source, "base", None)
    if source is not None and hasattr(mmap, "MADV_DONTNEED"):
        source.madvise(mmap.MADV_DONTNEED)


def write_tensors(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Arrays of uint16 are bfloat16."""
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, array in tensors.items():
        code, end = _CODES[array.dtype.name], offset + array.nbytes
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def _split(data: Bytes) -> tuple[dict[str, Any], Bytes]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(len(data) - 8, 100_000_000):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header: dict[str, Any] = parse_json(data[8 : 8 + length].tobytes())
    return header, data[8 + length :]


def _tensor(entry: Any, body: Bytes) -> FileTensor:
    shape, dtype = tuple(int(size) for size in entry["shape"]), str(entry["dtype"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    expected = math.prod(shape) * _SIZES[dtype] if dtype in _SIZES else end - begin
    if not 0 <= begin <= end <= len(body) or end - begin != expected or any(size < 0 for size in shape):
        raise ValueError(f"a tensor of shape {list(shape)} in the bytes {begin} to {end} of {len(body)}")
    return FileTensor(dtype, shape, body[begin:end])


Take = Callable[[Bytes], Bytes]  # bytes of a part, uint8 [..., bytes of a row], from those of a whole tensor
_FUSED = re.compile(
    r"(?P<prefix>.+\.mlp\.experts)\.(?P<stem>gate_up|gate|up|down)_proj(?P<kind>_bias|\.bias|_blocks|\.weight|)"
)
_RENAMED = (
    ("model.language_model.", "model."),  # the text part of what sees pictures, too
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    (".block_sparse_moe.", ".mlp."),
    (".mlp.router.", ".mlp.gate."),
    (".router.proj.", ".mlp.gate."),
    (".router.scale", ".mlp.gate.scale"),
    (".router.per_expert_scale", ".mlp.gate.expert_scale"),
    (".w1.weight", ".gate_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
    (".sinks.weight", ".sinks"),
    ("attention_layer_norm", "input_layernorm"),  # OLMo Hybrid's
    ("feedforward_layer_norm", "post_attention_layernorm"),
    (".linear_attn.g_proj.", ".linear_attn.in_proj_z."),
    (".linear_attn.a_proj.", ".linear_attn.in_proj_a."),
    (".linear_attn.b_proj.", ".linear_attn.in_proj_b."),
    (".linear_attn.o_proj.", ".linear_attn.out_proj."),
    (".linear_attn.o_norm.", ".linear_attn.norm."),
)
_EXPERTS_BESIDE = re.compile(r"(layers\.\d+)\.experts\.")  # Gemma 4's
IN_FLOAT32 = (  # how names of matrices end that the kernels compute with in float32: routers, and what states follow
    *(".mlp.gate.weight", ".mlp.shared_expert_gate.weight", ".conv1d.weight"),
    *(".linear_attn.in_proj_a.weight", ".linear_attn.in_proj_b.weight"),
    *(f".linear_attn.{each}_conv1d.weight" for each in "qkv"),
)
BLOCKS_END, SCALES_END = "_blocks", "_scales"  # how names of gpt-oss's tensors in MXFP4 end


def known_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return _EXPERTS_BESIDE.sub(r"\1.mlp.experts.", name)


_OF_HEAD = re.compile(r"(?:model\.)?mtp[._](.+)|model\.layers\.(\d{1,9})\.(.+)")


def head_name(name: str, layers: int) -> str:
    """`mtp.layers.0.eh_proj.weight` of a tensor that a multi-token-prediction head has, "" of another one.

    Heads may be numbered as layers behind the model's own `layers`.
    """
    match = _OF_HEAD.fullmatch(name)
    if match is None or (match[2] is not None and int(match[2]) < layers):
        return ""
    return f"mtp.{match[1]}" if match[1] else f"mtp.layers.{int(match[2]) - layers}.{match[3]}"


def is_of_expert(name: str) -> bool:
    return ".mlp.experts." in name


def expert_parts(name: str, shape: tuple[int, ...], *, turned: bool) -> Iterator[tuple[str, tuple[int, ...], Take]]:
    """Name, shape and bytes of each expert's part of a tensor of that shape; none: it does not hold several experts.

    `turned`: its rows are inputs, and outputs of gates and ups lie in turn (gpt-oss's in floats).
    """
    match = _FUSED.fullmatch(name)
    is_bias = match is not None and "bias" in match["kind"]
    if match is None or len(shape) != (2 if is_bias else 3):
        return
    interleaved = turned or match["kind"] == BLOCKS_END
    flipped = turned and not is_bias and match["kind"] == ""
    outputs, kind = shape[2 if flipped else 1], "bias" if is_bias else "weight"
    parts = {f"{match['stem']}_proj": slice(0, outputs)}
    if match["stem"] == "gate_up":
        half = outputs // 2
        gate, up = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, outputs))
        parts = {"gate_proj": gate, "up_proj": up}
    for number in range(shape[0]):
        for stem, rows in parts.items():
            own = len(range(outputs)[rows])
            part = (own,) if is_bias else (own, shape[1] if flipped else shape[2])
            take = partial(_take, number, rows, shape[1:], flipped or is_bias)
            yield f"{match['prefix']}.{number}.{stem}.{kind}", part, take


def _take(number: int, rows: slice, shape: tuple[int, ...], by_number: bool, raw: Bytes) -> Bytes:
    """One expert's rows; `by_number`: of a bias, or of a matrix whose rows lie as columns."""
    own = raw[number]
    if not by_number:
        return np.ascontiguousarray(own[rows])
    numbers = own.reshape(*shape, -1)  # the bytes of each number
    if len(shape) == 1:
        return np.ascontiguousarray(numbers[rows]).reshape(-1)
    taken = np.ascontiguousarray(numbers[:, rows].swapaxes(0, 1))
    return taken.reshape(len(taken), -1)


def take_mxfp4(take: Take, all_scales: Bytes, all_blocks: Bytes) -> Bytes:
    """A part of gpt-oss's tensors in MXFP4 as GGUF has the format, [rows, bytes].

    Both have exponents of 8 bits; of 32 codes, GGUF has the first half in the low nibbles, and gpt-oss every second.
    Scales are [experts, outputs, groups], blocks [experts, outputs, 16 bytes a group].
    """
    scales = take(all_scales)
    pairs = take(all_blocks).reshape(*scales.shape, 16)
    codes = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*scales.shape, 32)
    rows = np.concatenate((scales[..., None], codes[..., :16] | codes[..., 16:] << 4), axis=-1)
    return rows.reshape(len(rows), -1)
