import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from moa_shared.errors import ModelSourceError
from moa_shared.models.storage.tensors import (
    BF16,
    BLOCKS,
    F16,
    F32,
    Bytes,
    Floats,
    TensorFormat,
    map_tensors,
    read_metadata,
    to_float32,
    write_tensors,
)
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.torch

TENSORS = {
    "floats": torch.linspace(-1, 1, 12).reshape(3, 4),
    "halves": torch.linspace(-1, 1, 5).half(),
    "brains": torch.linspace(-1, 1, 7).bfloat16(),
    "ids": torch.arange(9),
    "none": torch.empty(0, 3),
    "one": torch.tensor(2.5),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "some.safetensors", metadata={"a": "b"})
    return tmp_path / "some.safetensors"


def test_a_file_of_the_library_is_read(path: Path) -> None:
    read = map_tensors(path)
    assert read.keys() == TENSORS.keys()
    codes = {"floats": "F32", "halves": "F16", "brains": "BF16", "ids": "I64", "none": "F32", "one": "F32"}
    for name, tensor in TENSORS.items():
        assert read[name].dtype == codes[name]
        assert read[name].shape == tuple(tensor.shape)
        assert read[name].data.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert read_metadata(path) == {"a": "b"}


def test_a_file_of_ours_is_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "ours.safetensors"
    brains = TENSORS["brains"].view(torch.uint16).numpy()
    blocks = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    write_tensors(path, {"brains": brains, "blocks": blocks, "strided": strided, "none": np.empty((0, 3), np.float16)})
    read = load_file(path)
    assert torch.equal(read["brains"], TENSORS["brains"])
    assert np.array_equal(read["blocks"].numpy(), blocks)
    assert np.array_equal(read["strided"].numpy(), strided)
    assert read["none"].shape == (0, 3)
    assert read_metadata(path) == {}
    assert map_tensors(path)["blocks"].shape == (2, 3, 4)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.999])
def test_a_truncated_file(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelSourceError, match=r"some\.safetensors cannot be read.*truncated or corrupt"):
        map_tensors(path)


def damaged(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"x": 5},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}},
        {"x": {"dtype": "F32", "shape": [-4], "data_offsets": [16, 0]}},
        {"x": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": ["a"], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [4]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
    ],
)
def test_a_header_that_makes_no_sense(tmp_path: Path, header: object) -> None:
    (tmp_path / "x").write_bytes(damaged(header))
    with pytest.raises(ModelSourceError, match="cannot be read"):
        map_tensors(tmp_path / "x")


Q4_1, Q8_0 = BLOCKS["q4_1"], BLOCKS["q8_0"]
FORMATS = {stored.name: stored for stored in (F32, F16, BF16, Q4_1, Q8_0)}  # that the gguf package also writes


def some(*shape: int, seed: int = 0) -> Floats:
    """Numbers of many magnitudes."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 4, shape)).astype(np.float32)


def stored_in(stored: TensorFormat, values: Floats) -> Bytes:
    data: Bytes = gguf.quants.quantize(values, gguf.GGMLQuantizationType[stored.name.upper()]).view(np.uint8)
    return data


@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", [(64,), (5, 32), (3, 96)])
def test_numbers_are_those_of_the_gguf_package(stored: TensorFormat, shape: tuple[int, ...]) -> None:
    raw = stored_in(stored, some(*shape))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[stored.name.upper()])
    values = to_float32(stored, raw)
    assert values.dtype == np.float32
    assert values.flags.writeable
    assert np.array_equal(values.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))
    assert values.shape == shape
    assert raw.shape[-1] == stored.row_bytes(shape[-1])


@pytest.mark.parametrize("kind", ["q4_0", "q5_1", "q6_k", "iq3_s", "tq2_0"])
def test_rarer_formats_are_read_as_the_gguf_package_reads_them(kind: str) -> None:
    quantisation = gguf.GGMLQuantizationType[kind.upper()]
    values, size = gguf.GGML_QUANT_SIZES[quantisation]
    raw = np.random.default_rng(1).integers(0, 60, (2, 3 * size), np.uint8)
    expected = gguf.quants.dequantize(raw, quantisation)
    assert np.array_equal(to_float32(TensorFormat(kind, values, size), raw), expected)
