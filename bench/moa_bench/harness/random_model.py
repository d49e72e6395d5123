"""Models of real sizes with random weights, as GGUF files: speed and memory do not depend on what the weights say.

State: a folder for each in the cache, `random-SHAPE-FORMAT-vN`. The tokenizer is the default model's, with unused
tokens up to the real size of the vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import GgufHeader, read_header
from moa_shared.models.sources.cache import building, cache_root, locked
from moa_shared.models.sources.packaged import DEFAULT_MODEL, find_installed, install_command
from moa_shared.programs.progress import Progress

from moa_bench.harness.shapes import FORMATS, SHAPES, FormatMixture, ModelShape

VERSION = 1  # raised when what a file holds changes
STD = 0.02  # of the weights
_TOKENS, _KINDS, _UNUSED = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", 5  # llama.cpp's type of such tokens


# What llama.cpp takes for rows that are not whole blocks of 256.
_SHORT_ROWS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
# Where blocks have their scales (float16), and what these are for weights of variance 1 and mean 0 when all other bits
# are random.
_SCALES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1 / 4.6},
    "Q4_1": {0: 1 / 4.6, 2: -7.5 / 4.6},
    "Q5_0": {0: 1 / 9.2},
    "Q5_1": {0: 1 / 9.2, 2: -15.5 / 9.2},
    "Q8_0": {0: 1 / 74},
    "Q4_K": {0: 1 / 276, 2: 7.5 / 276},
    "Q5_K": {0: 1 / 552, 2: 15.5 / 552},
    "Q6_K": {208: 1 / 1369},
    "IQ4_NL": {0: 1 / 66},
    "IQ4_XS": {0: 1 / 1221},
    "MXFP4": {},
}
_MXFP4_EXPONENT = 120  # a byte, of 2^-8 times a table of 0 to 12


def random_model(shape: str, stored: str, progress: Progress, cache_dir: Path | None = None) -> Path:
    """The file of a shape in a format, made now or before.

    Args:
        shape: of SHAPES; `stored`: of FORMATS.
    """
    entry = cache_root(cache_dir) / "models" / f"random-{shape}-{stored}-v{VERSION}"
    path = entry / f"random-{shape}-{stored}.gguf"
    with locked(entry, progress):
        if not path.is_file():
            vocabulary = _vocabulary(SHAPES[shape].vocab)
            needed = sum(tensor.nbytes for tensor in _tensors(SHAPES[shape], FORMATS[stored]))
            title = f"Making {path.name}"
            with building(entry, needed, path.name) as part, progress.task(title, needed, is_bytes=True) as task:
                for written in _write(part / path.name, SHAPES[shape], FORMATS[stored], vocabulary):
                    task.advance(written)
    return path


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to be written.

    Args:
        shape: [outputs, inputs] of a matrix, [experts, outputs, inputs] of one for each expert, [width] of a norm.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType

    @property
    def byte_shape(self) -> tuple[int, ...]:
        values, size = GGML_QUANT_SIZES[self.kind]
        return (*self.shape[:-1], self.shape[-1] // values * size)

    @property
    def nbytes(self) -> int:
        return math.prod(self.byte_shape)

    def make(self, random: np.random.Generator) -> npt.NDArray[Any]:
        """Random bits with scales that make sense."""
        if self.kind is GGMLQuantizationType.F32:
            if len(self.shape) == 1:
                return np.ones(self.shape, np.float32)
            return STD * random.standard_normal(self.shape, np.float32)  # a router, whose choices vary
        blocks = np.frombuffer(random.bytes(self.nbytes), np.uint8).reshape(-1, GGML_QUANT_SIZES[self.kind][1]).copy()
        for place, scale in _SCALES[self.kind.name].items():
            blocks[:, place : place + 2] = np.array([STD * scale], "<f2").view(np.uint8)
        if self.kind is GGMLQuantizationType.MXFP4:
            blocks[:, 0] = _MXFP4_EXPONENT
        return blocks.reshape(self.byte_shape)


def _write(path: Path, shape: ModelShape, mixture: FormatMixture, vocabulary: GgufHeader) -> Iterator[int]:
    """Writes a file; yields the bytes of each tensor when it is written."""
    writer, random = GGUFWriter(path, shape.architecture), np.random.default_rng(0)
    writer.add_name(path.stem)
    writer.add_file_type(mixture.number)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_vocab_size(shape.vocab)
    for key, value in vocabulary.metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    tensors = list(_tensors(shape, mixture))
    for tensor in tensors:
        dtype = np.dtype(np.float32 if tensor.kind is GGMLQuantizationType.F32 else np.uint8)
        dimensions = tensor.shape if dtype == np.float32 else tensor.byte_shape
        writer.add_tensor_info(tensor.name, dimensions, dtype, tensor.nbytes, raw_dtype=tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.make(random))
        yield tensor.nbytes
    writer.close()


def _tensors(shape: ModelShape, mixture: FormatMixture) -> Iterator[_Tensor]:
    """All of them, in the order of the file."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(name: str, outputs: int, inputs: int, kind: str, experts: int = 0) -> _Tensor:
        if inputs % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
            kind = _SHORT_ROWS[kind]
        dimensions = (experts, outputs, inputs) if experts else (outputs, inputs)
        return _Tensor(f"{name}.weight", dimensions, GGMLQuantizationType[kind])

    def norm(name: str, width: int = hidden) -> _Tensor:
        return _Tensor(f"{name}.weight", (width,), GGMLQuantizationType.F32)

    yield matrix("token_embd", shape.vocab, hidden, mixture.head if shape.tied else mixture.base)
    yield norm("output_norm")
    if not shape.tied:
        yield matrix("output", shape.vocab, hidden, mixture.head)
    eighth = shape.layers // 8
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        important = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        careful = mixture.more if important else mixture.base
        yield norm(f"{block}.attn_norm")
        yield matrix(f"{block}.attn_q", queries, hidden, mixture.base)
        yield matrix(f"{block}.attn_k", keys, hidden, mixture.base)
        yield matrix(f"{block}.attn_v", keys, hidden, careful)
        yield matrix(f"{block}.attn_output", hidden, queries, mixture.base)
        if shape.experts:  # Qwen3's
            yield norm(f"{block}.attn_q_norm", shape.head_dim)
            yield norm(f"{block}.attn_k_norm", shape.head_dim)
        yield norm(f"{block}.ffn_norm")
        if shape.experts:
            yield matrix(f"{block}.ffn_gate_inp", shape.experts, hidden, "F32")
        end = "_exps" if shape.experts else ""
        yield matrix(f"{block}.ffn_gate{end}", shape.inner, hidden, mixture.base, shape.experts)
        yield matrix(f"{block}.ffn_up{end}", shape.inner, hidden, mixture.base, shape.experts)
        yield matrix(f"{block}.ffn_down{end}", hidden, shape.inner, careful, shape.experts)


def _vocabulary(size: int) -> GgufHeader:
    """The default model's, and unused tokens up to a size, as a header with nothing else."""
    paths = find_installed(DEFAULT_MODEL)
    if paths is None:
        raise ModelSourceError(
            f"Models of random weights take the tokenizer of {DEFAULT_MODEL.target_id}, which is not installed.",
            hint=f"Install it with `{install_command(DEFAULT_MODEL)}`.",
        )
    header = read_header(paths[0])
    metadata = {key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")}
    tokens, kinds = header.texts(_TOKENS), header.integers(_KINDS)
    more = size - len(tokens)
    metadata[_TOKENS] = [*tokens, *(f"<|unused-{number}|>" for number in range(more))]
    metadata[_KINDS] = [*kinds, *[_UNUSED] * more]
    return GgufHeader(header.path, metadata, {})
