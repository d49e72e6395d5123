"""Writes a GGUF of a Llama's shape with random weights, and the vocabulary of another file: a target of any size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

KIND = gguf.GGMLQuantizationType.Q4_1
DEVIATION = 0.02  # of weights, as models are initialised
_STEPS = 15  # of a block, between its least and its greatest weight
_STEP = np.float16(DEVIATION * 12**0.5 / _STEPS)  # weights that are evenly spread


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, whose heads are 64 wide."""

    width: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int


def write_random_gguf(path: Path, shape: Shape, vocabulary_of: Path) -> Path:
    """Writes the file.

    Args:
        vocabulary_of: a GGUF with the tokenizer and chat template.
    """
    random = np.random.default_rng(0)
    source, writer = gguf.GGUFReader(vocabulary_of), gguf.GGUFWriter(path, "llama")
    kv_width, head = 64 * shape.kv_heads, shape.width // shape.heads
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            add = writer.add_array if is_array else partial(writer.add_key_value, vtype=field.types[0])
            add(name, field.contents())
    vocab_size = len(source.fields["tokenizer.ggml.tokens"].data)
    writer.add_name("random")
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(vocab_size)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.width, np.float32))

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, _blocks(random, rows, columns), raw_dtype=KIND)

    matrix("token_embd.weight", vocab_size, shape.width)
    norm("output_norm.weight")
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        norm(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", shape.width, shape.width)
        matrix(block + "attn_k.weight", kv_width, shape.width)
        matrix(block + "attn_v.weight", kv_width, shape.width)
        matrix(block + "attn_output.weight", shape.width, shape.width)
        matrix(block + "ffn_gate.weight", shape.mlp, shape.width)
        matrix(block + "ffn_up.weight", shape.mlp, shape.width)
        matrix(block + "ffn_down.weight", shape.width, shape.mlp)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _blocks(random: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """A matrix of Q4_1: in each block a step, the least weight, and 32 weights of four bits."""
    per_block, size = gguf.GGML_QUANT_SIZES[KIND]
    raw = random.integers(0, 256, (rows * columns // per_block, size), np.uint8)
    raw[:, :4] = np.array([_STEP, -_STEP * _STEPS / 2], np.float16).view(np.uint8)
    return raw.reshape(rows, columns // per_block * size)
