"""A device with its companion and drafters, before any server was there too, and the target's parts that it maps."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import sources as sources_module
from moa_client.device.drafter_catalog import COMPANION, DrafterChoice
from moa_client.device.loading import Device, Drafting, adopt, load_device, target_parts
from moa_client.device.sources import Sources, find_local_sources
from moa_client.drafting.drafters import CompanionDrafter, CompanionPair
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors, load_checkpoint
from moa_shared.drafter.kinds.weights import Arithmetic, TargetParts
from moa_shared.errors import MismatchError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.support.tiny_models import SIZES, WORDS, save_drafter, save_tiny_model, save_tokenizer, small_drafter

SILENT = SilentProgress()
PACKS = pytest.mark.skipif(variant_name() == "numpy", reason="the level int8 needs kernels")
EIGHT_BITS = Arithmetic(plain=False, in_numpy=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "large", template="{{ messages }}")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Of another family and with rows that pad its vocabulary."""
    folder = save_tiny_model(tmp_path / "small", "qwen3", vocab_size=128, num_hidden_layers=2)
    save_tokenizer(folder, template="{{ messages }}")
    return folder


def served(large: Path, step_ms: float = 0.0) -> pb.DescribeResponse:
    files = resolve(str(large))
    identity = pb.Identity(
        target_id=files.target_id,
        target_fingerprint=bytes.fromhex(files.fingerprint),
        tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
    )
    return pb.DescribeResponse(identity=identity, step_ms=step_ms, row_ms=step_ms / 100)


def load(large: Path, small: Path, step_ms: float = 0.0, **settings: Any) -> Device:
    client = ClientSettings(model=str(large), companion=str(small), **settings)
    return load_device(client, served(large, step_ms), SILENT)


def drafting_of(device: Device) -> Drafting:
    assert device.drafting is not None
    return device.drafting


def test_without_another_drafter_the_companion_drafts_too_and_needs_no_memory(large: Path, small: Path) -> None:
    for drafter in ("auto", "none"):
        drafting = drafting_of(load(large, small, drafter=drafter))
        assert drafting.choice == DrafterChoice(COMPANION, "the only one here", "small")
        assert (drafting.fingerprint, drafting.planes) == (b"", {})
        made = drafting.new_drafter()
        assert isinstance(made, CompanionDrafter)
        made.restart([5, 6, 7])
        assert max(made.grow(DraftTree((), ()), Sampling(0.0)).tokens) < len(WORDS)


def test_a_drafter_that_reads_memory_says_so_and_is_refused_without_it(
    large: Path, small: Path, tmp_path: Path
) -> None:
    checkpoint = load_checkpoint(save_drafter(tmp_path / "d.safetensors", small_drafter()))
    described, fingerprint = served(large), bytes.fromhex(checkpoint.fingerprint)
    described.drafters.add(name="online", fingerprint=fingerprint, tokens_a_forward=2.0)
    described.identity.drafter_fingerprint = fingerprint
    sources = Sources(described, resolve(str(large)), {fingerprint: tmp_path / "d.safetensors"})
    device = load_device(ClientSettings(companion=str(small)), described, SILENT, sources, None)
    drafting = drafting_of(device)
    reason = "the only one that the server gives memory for"
    assert drafting.choice == DrafterChoice("online", reason, "small")
    assert drafting.planes == {Plane.MEMORY: checkpoint.config.memory_width}
    assert isinstance(drafting.new_drafter(), CompanionPair)
    assert drafting.new_drafter().reads_memory
    assert device.identity.drafter_fingerprint == fingerprint
    refused = device.refused()
    assert (refused.identity.drafter_fingerprint, drafting_of(refused).planes) == (b"", {})
    assert drafting_of(refused).is_refused
    assert isinstance(drafting_of(refused).new_drafter(), CompanionPair)


def offline(small: Path, **settings: Any) -> ClientSettings:
    return ClientSettings(companion=str(small), offline=True, **settings)


@pytest.mark.parametrize("fits", [True, False])
async def test_the_first_server_s_target_is_taken_on_if_the_vocabulary_is_the_same(
    large: Path, small: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    settings = offline(small)
    sources = find_local_sources(settings, SILENT)
    assert sources is not None
    device = load_device(settings, sources.served, SILENT, sources, None)
    if not fits:
        save_tokenizer(large, [*WORDS[:5], "other", *WORDS[6:]])
    described = served(large)

    async def find_sources(*_: object) -> Sources:
        return Sources(described, resolve(str(large)), {})

    monkeypatch.setattr(sources_module, "find_sources", find_sources)
    if not fits:
        with pytest.raises(MismatchError):
            await adopt(settings, cast("Any", None), described, device)
        return
    adopted = await adopt(settings, cast("Any", None), described, device)
    assert adopted.identity == described.identity
    assert drafting_of(adopted).is_refused
    assert not adopted.target.stands_in
    assert adopted.companion is not None
    assert device.companion is not None
    assert adopted.companion.network is device.companion.network
    assert isinstance(drafting_of(adopted).new_drafter(), CompanionDrafter)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "tiny", "qwen2")), tmp_path / "cache")


def drafter(reused_layers: int) -> Checkpoint:
    config = small_drafter(reused_layers=reused_layers)
    return Checkpoint(config, fresh_tensors(config, seed=0), "")


def parts_of(files: ModelFiles, tmp_path: Path, reused: int, dtype: str = "int8") -> TargetParts:
    settings = ClientSettings(cache_dir=tmp_path / "cache", dtype=dtype)  # type: ignore[arg-type]
    return target_parts(WeightReader(files), files, drafter(reused), settings, 0)


def tile_names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("cache/tiles/*.tiles"))


def is_mapped(parts: TargetParts) -> bool:
    memory = parts.head(None, EIGHT_BITS)._parts[0].memory
    base = memory.base
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)


@PACKS
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
