"""A client that holds nothing fetches its half from the server, over links that break and from servers that lie."""

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import fetching
from moa_client.device.fetching import Fetched, WantedParts, fetch, find_fetched
from moa_client.device.loading import Device, load_device, refit
from moa_client.device.sources import Sources, find_local_sources, find_sources
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.service import fetch as drafter_files
from moa_server.settings import ServerSettings
from moa_shared import errors
from moa_shared.models import WeightReader, load_tokenizer, resolve
from moa_shared.programs.progress import Progress

from tests.net.client_device import Source, make_source
from tests.support.messages import says
from tests.support.tiny_models import save_drafter, small_drafter
from tests.unit.moa_testing.stories import linked

QUIET = Progress()
EVIL = "{% for m in messages %}w9 {{ m.content }} {% endfor %}"
Change = Callable[[pb.FetchDrafterResponse], None]


class Stage:
    """A device, which holds nothing at first, and a server of some files."""

    def __init__(self, root: Path, source: Source, link: Fleet) -> None:
        self.root, self.source, self.link = root, source, link
        self.wanted = WantedParts(target=True, drafters={hashlib.sha256(source.drafter.read_bytes()).digest()})

    def settings(self, **changes: Any) -> ClientSettings:
        return ClientSettings(server=self.link.shown.address, cache_dir=self.root, **changes)

    async def sources(self, **changes: Any) -> Sources:
        return await find_sources(self.settings(**changes), self.link, await self.link.describe(), QUIET)

    async def load(self, **changes: Any) -> Device:
        described = await self.link.describe()
        return load_device(self.settings(**changes), described, QUIET, await self.sources(**changes))

    async def fetch(self, described: bytes = b"", allowed: int = 10_000_000) -> Fetched:
        return await fetch(self.link, self.root, self.wanted, QUIET, described, allowed)

    @property
    def came(self) -> int:
        return self.link.servers[0].traffic.down_bytes


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", reused_layers=1)


@asynccontextmanager
async def serving(
    source: Source, tmp_path: Path, kind: type[Server] = Server, place: str = "server", **changes: Any
) -> AsyncIterator[Stage]:
    usual = {"model": str(source.model), "drafter": str(source.drafter), "execution": "int8", "port": 0}
    settings: dict[str, Any] = usual | changes
    host = load_host(ServerSettings(**settings, cache_dir=tmp_path / place), QUIET)
    async with linked(host, kind) as server:
        yield Stage(tmp_path / "client", source, Fleet([server]))


@pytest.mark.parametrize(("reused_layers", "tied"), [(1, False), (0, True)])
async def test_a_device_with_nothing_can_draft(tmp_path: Path, reused_layers: int, tied: bool) -> None:
    source = make_source(tmp_path / "source", reused_layers=reused_layers, tied=tied)
    async with serving(source, tmp_path) as stage:
        device = await stage.load(dtype="float32")
        assert device.identity == (await stage.link.describe()).identity
    assert device.drafting is not None
    assert device.drafting.new_drafter().reads_memory
    whole, target = resolve(str(source.model), tmp_path / "server"), device.target
    assert target.tokenizer.decode([7, 9]) == load_tokenizer(whole).decode([7, 9])
    assert target.end_of_text == {2}
    mine, exact = WeightReader(target.files), WeightReader(whole)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        step = np.abs(exact.array(name)).max() / 127
        assert (np.abs(mine.array(name) - exact.array(name)) <= step).all()
    fetched = sum(path.stat().st_size for path in target.files.folder.iterdir())
    assert fetched < sum(path.stat().st_size for path in source.model.iterdir()) + source.drafter.stat().st_size


async def test_files_that_fail_when_they_are_tried_are_refused_at_each_start(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, root: Path) -> str:
        raise errors.ModelSourceError("They are hostile.")

    async with serving(source, tmp_path) as stage:
        monkeypatch.setattr(fetching, "accept_tokenizer", refuse)
        for _ in range(2):
            with pytest.raises(errors.ModelSourceError, match="They are hostile"):
                await stage.load()
    assert find_local_sources(stage.settings(), QUIET) is None


async def test_what_was_fetched_serves_the_next_start_and_no_server_at_all(source: Source, tmp_path: Path) -> None:
    async with serving(source, tmp_path) as stage:
        assert (await stage.sources(drafter="lookup")).files.weights == ()  # text is enough
        assert stage.came < 50_000
        first = await stage.sources()
        before = stage.came
        assert await stage.sources() == first
        assert stage.came - before < 5_000  # to describe itself
    assert first.files.weights
    assert find_local_sources(stage.settings(), QUIET) == first
    assert find_local_sources(replace(stage.settings(), server="127.0.0.1:1"), QUIET) is None


async def test_a_server_that_is_replaced_by_one_with_another_drafter_gives_that_one_alone(
    source: Source, tmp_path: Path
) -> None:
    async with serving(source, tmp_path) as stage:
        device = await stage.load(dtype="float32")
    other = replace(source, drafter=save_drafter(tmp_path / "other.safetensors", small_drafter(), seed=9))
    async with serving(other, tmp_path) as stage:
        settings, described = stage.settings(dtype="float32"), await stage.link.describe()
        fitted = await refit(settings, stage.link, described, device, 0.0)
        assert fitted is not None
        assert fitted.identity == described.identity != device.identity
        assert stage.came < other.drafter.stat().st_size + 5_000
        described.identity.target_fingerprint = b"x" * 32
        with pytest.raises(errors.MismatchError):
            await refit(settings, stage.link, described, device, 0.0)
    async with serving(source, tmp_path, drafter="none") as stage:
        with says(errors.NotFoundError, "The server has no embeddings for clients"):
            await stage.load(drafter="owner/drafter")


class Cut(Server):
    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        count = 0
        async for message in super().fetch(request):
            if request.name and count == 2:
                raise errors.UnavailableError("The server cannot be reached (cut).")
            count += 1
            yield message


@pytest.mark.parametrize("attempts", [6, 1], ids=["where it broke", "at the next start"])
async def test_a_download_continues(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(drafter_files, "CHUNK_BYTES", 1000 if attempts > 1 else 50_000)
    monkeypatch.setattr(fetching, "Backoff", lambda: SimpleNamespace(next_seconds=float, reset=int))
    monkeypatch.setattr(fetching, "FRUITLESS_ATTEMPTS", attempts)
    async with serving(source, tmp_path, Cut) as stage:
        if attempts == 1:
            with says(errors.UnavailableError, "The server cannot be reached (cut)"):
                await stage.fetch()
            [partial] = stage.root.glob("fetched/*/*.partial")
            assert partial.stat().st_size == 100_000
            assert find_fetched(stage.root, b"t" * 32, stage.wanted) is None
            [server] = stage.link.servers
            stage.link = Fleet([Server(server.address, 5.0, 10.0, server.security)])
        parts = await stage.fetch()
        total, came = sum(path.stat().st_size for path in parts.files.folder.iterdir()), stage.came
    assert came < (total - 90_000 if attempts == 1 else 1.7 * total)  # each break repeats one message of three
    [drafter] = parts.drafters.values()
    assert drafter.read_bytes() == source.drafter.read_bytes()
    assert not list(stage.root.glob("fetched/*/*.partial"))


class Liar(Server):
    change: Change

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            self.change(message)
            yield message


def listed(at: int = 0, **fields: Any) -> Change:
    """Says something else about a file: the first one is text, the last one holds tensors."""

    def change(message: pb.FetchDrafterResponse) -> None:
        for name, value in fields.items() if message.manifest.files else ():
            setattr(message.manifest.files[at], name, value)

    return change


def sent(change: Callable[[bytes], bytes], later: int = 0) -> Change:
    def change_chunk(message: pb.FetchDrafterResponse) -> None:
        if message.chunk.data:
            message.chunk.data, message.chunk.offset = change(message.chunk.data), message.chunk.offset + later

    return change_chunk


NAMES = ("../../outside.json", "/etc/passwd", "weights.bin", "model.py", "manifest.pb", "tokenizer.json")  # twice


@pytest.mark.parametrize(("change", "error"), [
    *((listed(name=name), errors.ProtocolError) for name in NAMES),
    (listed(size=1 << 60), errors.ProtocolError),
    (listed(sha256=b"short"), errors.ProtocolError),
    (listed(-1, size=1 << 30), errors.ProtocolError),  # more than the tiny model can have
    (lambda message: message.ClearField("manifest"), errors.ProtocolError),
    (sent(lambda data: bytes(each ^ 1 for each in data)), errors.ChecksumError),
    (sent(bytes, later=1), errors.ProtocolError),
    (sent(lambda data: data + b"more"), errors.ProtocolError),
])  # fmt: skip
async def test_what_a_server_must_not_send(
    source: Source, tmp_path: Path, change: Change, error: type[errors.MoaError]
) -> None:
    async with serving(source, tmp_path, Liar) as stage:
        stage.link.servers[0].change = change  # type: ignore[attr-defined]
        with pytest.raises(error):
            await stage.fetch()
    assert not (tmp_path / "outside.json").exists()


async def test_a_file_that_is_damaged_or_was_changed_on_the_disk_is_fetched_again(
    source: Source, tmp_path: Path
) -> None:
    async with serving(source, tmp_path) as stage:
        digest = (await stage.link.describe()).manifest_sha256
        with says(errors.ChecksumError, "The server's list of files differs from the one it described"):
            await stage.fetch(b"x" * 32)
        assert not list(stage.root.glob("fetched/*/*"))
        parts = await stage.fetch()
        assert parts.manifest_sha256 == digest
        [drafter] = parts.drafters.values()
        for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json", drafter.name):
            path = parts.files.folder / name
            whole = path.read_bytes()
            path.write_text(EVIL)
            assert find_fetched(stage.root, digest, stage.wanted) is None
            assert await stage.fetch(digest) == parts
            assert path.read_bytes() == whole
        assert find_fetched(stage.root, digest, stage.wanted) == parts


async def test_much_is_fetched_only_if_that_is_allowed_and_has_room(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(source, tmp_path) as stage:
        with says(errors.ConfigError, "Fetching the drafter for model takes 544 kB, more than the 100 kB that are"):
            await stage.fetch(allowed=100_000)
        assert [path.name for path in stage.root.glob("fetched/*/*.*")] == ["config.json"]
        with monkeypatch.context() as full:
            usage = shutil.disk_usage(tmp_path)
            full.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
            with says(
                errors.DiskFullError, "What is fetched from the server needs 50.5 MB in TMP/client/fetched/DIGEST,"
            ):
                await stage.fetch()
        assert not list(stage.root.glob("**/*.partial"))
        await stage.fetch()


class Impostor(Server):
    """A server that claims to be another one, and has a chat template of its own."""

    claimed = b""

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        described = await super().describe(seconds, prefix_hashes)
        described.identity.target_fingerprint, described.manifest_sha256 = self.claimed, b""
        return described

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            if message.HasField("manifest"):
                message.manifest.identity.target_fingerprint = self.claimed
            yield message


async def test_what_an_impostor_gave_is_never_used_with_the_honest_server(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fingerprint may be claimed; template, decoder and embeddings of a server come from that server."""
    evil = make_source(tmp_path / "evil", reused_layers=1)
    (evil.model / "chat_template.jinja").write_text(EVIL)
    async with serving(source, tmp_path) as stage:
        monkeypatch.setattr(Impostor, "claimed", (await stage.link.describe()).identity.target_fingerprint)
        async with serving(evil, tmp_path, Impostor, "evil server") as cheated:
            got = await cheated.sources(drafter="lookup")
            assert load_tokenizer(got.files).chat_template == EVIL
        sources = await stage.sources(drafter="lookup")
        assert load_tokenizer(sources.files).chat_template != EVIL
        assert sources.files.folder != got.files.folder
    alone = find_local_sources(stage.settings(drafter="lookup"), QUIET)
    assert alone is not None
    assert alone.files == sources.files
