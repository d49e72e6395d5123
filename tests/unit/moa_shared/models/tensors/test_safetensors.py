from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.tensors import map_file, map_tensors, read_metadata, write_tensors
from safetensors.torch import load_file, save_file

from tests.support.messages import raises

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


def test_a_type_that_is_not_written(tmp_path: Path) -> None:
    with raises(ValueError, snapshot("x is int64, which is not written")):
        write_tensors(tmp_path / "x", {"x": np.arange(3)})


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.999])
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


def test_a_header_of_absurd_length(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 32)
    for read in (map_tensors, read_metadata):
        with pytest.raises(ModelSourceError, match=r"a header of 18446744073709551615 bytes in a file of 32"):
            read(tmp_path / "x")


def test_a_missing_file(tmp_path: Path) -> None:
    with raises(
        ModelSourceError,
        snapshot(
            "The weights TMP/none cannot be read ([Errno 2] No such file or directory: 'TMP/none'). The file is truncated or corrupt: delete it and fetch the model again."
        ),
    ):
        map_tensors(tmp_path / "none")


def test_a_mapped_file_cannot_be_changed(path: Path) -> None:
    data = map_file(path)
    assert data.tobytes() == path.read_bytes()
    assert not data.flags.writeable
