from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from moa_client.device.loading import target_parts
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.layers.weights import Arithmetic, TargetParts
from moa_shared.models import ModelFiles, WeightReader, resolve

from tests.support.tiny_models import SIZES, save_tiny_model, small_drafter

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="packs for compiled kernels")
EIGHT_BITS = Arithmetic(plain=False, in_numpy=False)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "tiny", "qwen2")), tmp_path / "cache")


def drafter(reused_layers: int) -> Checkpoint:
    config: DrafterConfig = small_drafter(reused_layers=reused_layers)
    return Checkpoint(config, fresh_tensors(config, seed=0), "")


def parts_of(files: ModelFiles, tmp_path: Path, reused: int, dtype: str = "int8") -> TargetParts:
    settings = ClientSettings(cache_dir=tmp_path / "cache", dtype=dtype)  # type: ignore[arg-type]
    return target_parts(WeightReader(files), files, drafter(reused), settings, 0)


def tile_names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("cache/tiles/*.tiles"))


def is_mapped(parts: TargetParts) -> bool:
    """Whether the head's tiles are those of a file."""
    memory = parts.head(None, EIGHT_BITS)._parts[0].memory
    base = memory.base
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)


def test_head_and_layers_are_mapped_and_compute_the_same(files: ModelFiles, tmp_path: Path) -> None:
    parts, plain = parts_of(files, tmp_path, 2), TargetParts(WeightReader(files))
    assert is_mapped(parts)
    assert not is_mapped(plain)
    rows = np.random.default_rng(0).standard_normal((3, SIZES["hidden_size"]), np.float32)
    np.testing.assert_array_equal(parts.head(None, EIGHT_BITS)(rows), plain.head(None, EIGHT_BITS)(rows))
    for mapped, packed in zip(parts.layers([1, 2], EIGHT_BITS), plain.layers([1, 2], EIGHT_BITS), strict=True):
        np.testing.assert_array_equal(mapped.qkv(rows), packed.qkv(rows))
        np.testing.assert_array_equal(mapped.mlp[0](rows), packed.mlp[0](rows))
    [name] = tile_names(tmp_path)
    assert is_mapped(parts_of(files, tmp_path, 2))
    assert tile_names(tmp_path) == [name]


def test_other_arithmetics_pack_their_own(files: ModelFiles, tmp_path: Path) -> None:
    parts, plain = parts_of(files, tmp_path, 1), TargetParts(WeightReader(files))
    rows = np.random.default_rng(0).standard_normal((3, SIZES["hidden_size"]), np.float32)
    for arithmetic in (
        Arithmetic(plain=True, in_numpy=False),
        Arithmetic(plain=False, in_numpy=True),
        Arithmetic(plain=False, in_numpy=False, four_bits=True),
    ):
        np.testing.assert_array_equal(parts.head(None, arithmetic)(rows), plain.head(None, arithmetic)(rows))


def test_nothing_is_packed_in_float32(files: ModelFiles, tmp_path: Path) -> None:
    parts_of(files, tmp_path, 2, dtype="float32")
    assert tile_names(tmp_path) == []


def test_a_full_disk_leaves_parts_in_memory(files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    assert not is_mapped(parts_of(files, tmp_path, 2))
    assert tile_names(tmp_path) == []
