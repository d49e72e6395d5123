"""A companion that a server offers: fetched from it or from the hub, and what must not be offered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import sources
from moa_client.device.sources import find_offered, offered_words, take_offered
from moa_client.host.host import Reached, Started, find, load
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.companion import cache_file, confidence_beside, write_confidence
from moa_shared.drafting.estimates import LearnedConfidence
from moa_shared.errors import ChecksumError, MismatchError, NotFoundError, UnavailableError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.storage.tensors import EMBEDDINGS
from moa_shared.programs.progress import SilentProgress

from tests.net.client_device import Source, make_source
from tests.support import tiny_gguf
from tests.support.tiny_gguf import GgufWriter, write_gguf
from tests.support.tiny_models import save_tiny_model
from tests.unit.moa_testing.stories import linked

__all__ = ["write_gguf"]
QUIET = SilentProgress()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "small", seed=9, max_position_embeddings=128)


@asynccontextmanager
async def offering(model: Path, companion: object, tmp_path: Path, **changes: Any) -> AsyncIterator[Fleet]:
    settings = ServerSettings(
        model=str(model), companion=str(companion), drafter="none", execution="int8", port=0,
        cache_dir=tmp_path / "server", **changes,
    )  # fmt: skip
    host = load_host(settings, QUIET)
    async with linked(host) as server:
        yield Fleet([server])


def settings_at(tmp_path: Path) -> ClientSettings:
    return ClientSettings(cache_dir=tmp_path / "client")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fingerprint(path: Path, tmp_path: Path) -> str:
    return resolve(str(path), tmp_path / "server").fingerprint


async def test_a_folder_comes_whole_and_only_once(source: Source, small: Path, tmp_path: Path) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served = await link.describe()
        told = served.companion
        assert (told.name, told.family, told.hub) == ("small", "llama", "")
        assert told.bytes == sum(map(len, contents(small).values()))
        assert offered_words(told) == f"small ({told.bytes / 1000:.3g} kB)"
        assert find_offered(settings_at(tmp_path), told) is None
        files = await take_offered(settings_at(tmp_path), link, served, QUIET)
        again = await take_offered(settings_at(tmp_path), Fleet([Server("127.0.0.1:1", 1.0, 1.0)]), served, QUIET)
    assert again == files == find_offered(settings_at(tmp_path), told)
    assert files.fingerprint == told.fingerprint.hex() == fingerprint(small, tmp_path)
    theirs = WeightReader(resolve(str(small), tmp_path / "server")).array(EMBEDDINGS)
    assert (WeightReader(files).array(EMBEDDINGS) == theirs).all()


async def test_a_gguf_file_comes_without_its_name(
    write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for heads in ("HEADS", "KV_HEADS"):  # of 32 numbers, which the kernels compute
        monkeypatch.setattr(tiny_gguf, heads, 1)
    target, secret = (write_gguf(f"{name}.gguf", seed=len(name), rotated=32) for name in ("target", "of-somebody"))
    root = tmp_path / "server"
    models = [resolve(str(path), root) for path in (secret, target)]
    measured, (small, large) = LearnedConfidence(1.25, 20.0), (model.fingerprint for model in models)
    write_confidence(cache_file(small, large, root), measured, small, large)
    async with offering(target, secret, tmp_path) as link:
        served = await link.describe()
        files = await take_offered(settings_at(tmp_path), link, served, QUIET)
    assert [path.name for path in files.weights] == ["model-00001-of-00001.gguf"]
    assert files.weights[0].read_bytes() == secret.read_bytes()
    assert files.fingerprint == fingerprint(secret, tmp_path)
    assert find_offered(settings_at(tmp_path), served.companion) == files
    assert confidence_beside(files, models[1], tmp_path / "client") == measured  # as the operator has measured it


@pytest.mark.parametrize("fate", ["vanishes", "changes"])
async def test_a_file_that_is_no_longer_what_was_offered_is_not_given_out(
    source: Source, small: Path, tmp_path: Path, fate: str
) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served, weights = await link.describe(), small / "model.safetensors"
        if fate == "vanishes":
            weights.unlink()
        else:
            weights.write_bytes(weights.read_bytes()[::-1])
        with pytest.raises(
            NotFoundError, match=r"no longer has its file model.safetensors: .*Tell whoever runs it"
        ) as no:
            await take_offered(settings_at(tmp_path), link, served, QUIET)
        assert ("No such file" if fate == "vanishes" else "has changed") in no.value.message
        assert (await link.describe()).identity == served.identity  # the server goes on
    assert find_offered(settings_at(tmp_path), served.companion) is None


async def test_what_a_server_must_not_offer(source: Source, small: Path, tmp_path: Path) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served = await link.describe()
        served.companion.manifest_sha256 = b"a" * 32
        with pytest.raises(ChecksumError, match="differs from the one it described"):
            await take_offered(settings_at(tmp_path), link, served, QUIET)
        served.companion.manifest_sha256 = b""
        served.companion.fingerprint = b"f" * 32
        with pytest.raises(MismatchError, match="companion small"):
            await take_offered(settings_at(tmp_path), link, served, QUIET)


def test_a_server_names_no_path_of_this_device(small: Path, tmp_path: Path) -> None:
    for name in (str(small), "default", f"hub:{small}", "hub:../small"):
        offered = pb.Companion(fingerprint=b"f" * 32, hub=name)
        assert sources._on_hub(offered) is None


async def begin(model: Path, link: Fleet, tmp_path: Path, *, is_there: bool = True) -> Started:
    """What a chat with --companion auto starts with."""
    settings = ClientSettings(server=link.shown.address, companion="auto", cache_dir=tmp_path / "client")
    reached = Reached(await link.describe(), 0.0) if is_there else Reached(absent=UnavailableError("It is away."))
    return load(settings, reached, await find(settings, link, reached, QUIET), QUIET)


async def test_a_chat_takes_the_companion_that_is_offered_now_and_keeps_it_without_the_server(
    source: Source, small: Path, tmp_path: Path
) -> None:
    another = save_tiny_model(tmp_path / "another", seed=5)
    for offered in (small, another):  # the second server is asked at the same address
        async with offering(source.model, offered, tmp_path) as link:
            started = await begin(source.model, link, tmp_path)
            away = await begin(source.model, link, tmp_path, is_there=False)
        for each in (started, away):
            assert each.device.companion is not None
            assert each.device.companion.fingerprint == fingerprint(offered, tmp_path)
            assert each.device.drafting is not None
