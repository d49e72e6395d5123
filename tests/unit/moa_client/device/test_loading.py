"""A device with its companion and drafters, the target's parts that it maps, and companions that a server offers."""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import sources
from moa_client.device import sources as sources_module
from moa_client.device.drafter_catalog import COMPANION, DrafterChoice
from moa_client.device.loading import Device, Drafting, adopt, load_device, target_parts
from moa_client.device.sources import Sources, find_local_sources, find_offered, offered_words, take_offered
from moa_client.drafting.drafters import CompanionDrafter, CompanionPair
from moa_client.host.host import Reached, Started, find
from moa_client.host.host import load as load_started
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors, load_checkpoint
from moa_shared.drafter.companion import cache_file, confidence_beside, write_confidence
from moa_shared.drafter.kinds.weights import Arithmetic, TargetParts
from moa_shared.drafting.estimates import LearnedConfidence
from moa_shared.errors import ChecksumError, MismatchError, NotFoundError, UnavailableError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models.storage.tensors import EMBEDDINGS
from moa_shared.programs.progress import Progress
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.net.client_device import Source, make_source
from tests.support import tiny_gguf
from tests.support.tiny_gguf import GgufWriter, write_gguf
from tests.support.tiny_models import SIZES, WORDS, save_drafter, save_tiny_model, save_tokenizer, small_drafter
from tests.unit.moa_testing.stories import linked

SILENT = Progress()
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


__all__ = ["write_gguf"]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "small", seed=9, max_position_embeddings=128)


@asynccontextmanager
async def offering(model: Path, companion: object, tmp_path: Path, **changes: Any) -> AsyncIterator[Fleet]:
    settings = ServerSettings(
        model=str(model), companion=str(companion), drafter="none", execution="int8", port=0,
        cache_dir=tmp_path / "server", **changes,
    )  # fmt: skip
    host = load_host(settings, SILENT)
    async with linked(host) as server:
        yield Fleet([server])


def settings_at(tmp_path: Path) -> ClientSettings:
    return ClientSettings(cache_dir=tmp_path / "client")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fingerprint(path: Path, tmp_path: Path) -> str:
    return resolve(str(path), tmp_path / "server").fingerprint


async def test_a_folder_comes_whole_and_only_once(source: Source, llama: Path, tmp_path: Path) -> None:
    async with offering(source.model, llama, tmp_path) as link:
        served = await link.describe()
        told = served.companion
        assert (told.name, told.family, told.hub) == ("small", "llama", "")
        assert told.bytes == sum(map(len, contents(llama).values()))
        assert offered_words(told) == f"small ({told.bytes / 1000:.3g} kB)"
        assert find_offered(settings_at(tmp_path), told) is None
        files = await take_offered(settings_at(tmp_path), link, served, SILENT)
        again = await take_offered(settings_at(tmp_path), Fleet([Server("127.0.0.1:1", 1.0, 1.0)]), served, SILENT)
    assert again == files == find_offered(settings_at(tmp_path), told)
    assert files.fingerprint == told.fingerprint.hex() == fingerprint(llama, tmp_path)
    theirs = WeightReader(resolve(str(llama), tmp_path / "server")).array(EMBEDDINGS)
    assert (WeightReader(files).array(EMBEDDINGS) == theirs).all()


async def test_a_gguf_file_comes_without_its_name(
    write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for heads in ("HEADS", "KV_HEADS"):  # of 32 numbers, which the kernels compute
        monkeypatch.setattr(tiny_gguf, heads, 1)
    target, secret = (write_gguf(f"{name}.gguf", seed=len(name), rotated=32) for name in ("target", "of-somebody"))
    root = tmp_path / "server"
    models = [resolve(str(path), root) for path in (secret, target)]
    measured, (llama, large) = LearnedConfidence(1.25, 20.0), (model.fingerprint for model in models)
    write_confidence(cache_file(llama, large, root), measured, llama, large)
    async with offering(target, secret, tmp_path) as link:
        served = await link.describe()
        files = await take_offered(settings_at(tmp_path), link, served, SILENT)
    assert [path.name for path in files.weights] == ["model-00001-of-00001.gguf"]
    assert (files.weights[0].read_bytes(), files.fingerprint) == (secret.read_bytes(), fingerprint(secret, tmp_path))
    assert find_offered(settings_at(tmp_path), served.companion) == files
    assert confidence_beside(files, models[1], tmp_path / "client") == measured  # as the operator has measured it


@pytest.mark.parametrize("fate", ["vanishes", "changes"])
async def test_a_file_that_is_no_longer_what_was_offered_is_not_given_out(
    source: Source, llama: Path, tmp_path: Path, fate: str
) -> None:
    async with offering(source.model, llama, tmp_path) as link:
        served, weights = await link.describe(), llama / "model.safetensors"
        if fate == "vanishes":
            weights.unlink()
        else:
            weights.write_bytes(weights.read_bytes()[::-1])
        with pytest.raises(
            NotFoundError, match=r"no longer has its file model.safetensors: .*Tell whoever runs it"
        ) as no:
            await take_offered(settings_at(tmp_path), link, served, SILENT)
        assert ("No such file" if fate == "vanishes" else "has changed") in no.value.message
        assert (await link.describe()).identity == served.identity  # the server goes on
    assert find_offered(settings_at(tmp_path), served.companion) is None


async def test_what_a_server_must_not_offer(source: Source, llama: Path, tmp_path: Path) -> None:
    async with offering(source.model, llama, tmp_path) as link:
        served = await link.describe()
        served.companion.manifest_sha256 = b"a" * 32
        with pytest.raises(ChecksumError, match="differs from the one it described"):
            await take_offered(settings_at(tmp_path), link, served, SILENT)
        served.companion.manifest_sha256 = b""
        served.companion.fingerprint = b"f" * 32
        with pytest.raises(MismatchError, match="companion small"):
            await take_offered(settings_at(tmp_path), link, served, SILENT)


def test_a_server_names_no_path_of_this_device(llama: Path, tmp_path: Path) -> None:
    for name in (str(llama), "default", f"hub:{llama}", "hub:../small"):
        offered = pb.Companion(fingerprint=b"f" * 32, hub=name)
        assert sources._on_hub(offered) is None


async def begin(model: Path, link: Fleet, tmp_path: Path, *, is_there: bool = True) -> Started:
    """What a chat with --companion auto starts with."""
    settings = ClientSettings(server=link.shown.address, companion="auto", cache_dir=tmp_path / "client")
    reached = Reached(await link.describe(), 0.0) if is_there else Reached(absent=UnavailableError("It is away."))
    return load_started(settings, reached, await find(settings, link, reached, SILENT), SILENT)


async def test_a_chat_takes_the_companion_that_is_offered_now_and_keeps_it_without_the_server(
    source: Source, llama: Path, tmp_path: Path
) -> None:
    another = save_tiny_model(tmp_path / "another", seed=5)
    for offered in (llama, another):  # the second server is asked at the same address
        async with offering(source.model, offered, tmp_path) as link:
            started = await begin(source.model, link, tmp_path)
            away = await begin(source.model, link, tmp_path, is_there=False)
        for each in (started, away):
            assert each.device.companion is not None
            assert each.device.companion.fingerprint == fingerprint(offered, tmp_path)
            assert each.device.drafting is not None
