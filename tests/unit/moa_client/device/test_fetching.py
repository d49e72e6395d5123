"""A client that holds nothing fetches its half from the server, over links that break and from servers that lie."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import fetching
from moa_client.device.fetching import WantedParts, fetch, find_fetched
from moa_client.device.loading import Device, load_device, refit
from moa_client.device.sources import find_local_sources, find_sources
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.service import fetch as drafter_files
from moa_server.service.host import Host
from moa_server.settings import ServerSettings
from moa_shared.errors import (
    ChecksumError,
    ConfigError,
    DiskFullError,
    MismatchError,
    MoaError,
    ModelSourceError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from moa_shared.models import WeightReader, load_tokenizer, resolve
from moa_shared.programs.progress import SilentProgress

from tests.net.fetch_source import Source, make_source
from tests.support.messages import says
from tests.support.tiny_models import save_drafter, small_drafter
from tests.unit.moa_testing.stories import linked

QUIET = SilentProgress()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", reused_layers=1)


def host_of(source: Source, cache: Path, **changes: Any) -> Host:
    usual = {"model": str(source.model), "drafter": str(source.drafter), "execution": "int8", "port": 0}
    settings: dict[str, Any] = usual | changes
    return load_host(ServerSettings(**settings, cache_dir=cache), QUIET)


@asynccontextmanager
async def served(source: Source, tmp_path: Path, **changes: Any) -> AsyncIterator[Fleet]:
    host = host_of(source, tmp_path / "server", **changes)
    async with linked(host) as server:
        yield Fleet([server])


def everything(source: Source) -> WantedParts:
    return WantedParts(target=True, drafters={hashlib.sha256(source.drafter.read_bytes()).digest()})


def settings_at(link: Fleet, tmp_path: Path, **changes: Any) -> ClientSettings:
    return ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), **changes)


async def load(link: Fleet, settings: ClientSettings) -> Device:
    described = await link.describe()
    return load_device(settings, described, QUIET, await find_sources(settings, link, described, QUIET))


def here(tmp_path: Path) -> Path:
    return tmp_path / "client"


@pytest.mark.parametrize(("reused_layers", "tied"), [(1, False), (0, True)])
async def test_a_device_with_nothing_can_draft(tmp_path: Path, reused_layers: int, tied: bool) -> None:
    source = make_source(tmp_path / "source", reused_layers=reused_layers, tied=tied)
    async with served(source, tmp_path) as link:
        device = await load(link, settings_at(link, tmp_path, dtype="float32"))
        assert device.identity == (await link.describe()).identity
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
        raise ModelSourceError("They are hostile.")

    async with served(source, tmp_path) as link:
        settings = settings_at(link, tmp_path)
        monkeypatch.setattr(fetching, "accept_tokenizer", refuse)
        for _ in range(2):
            with pytest.raises(ModelSourceError, match="They are hostile"):
                await load(link, settings)
    assert find_local_sources(settings, QUIET) is None


async def test_what_was_fetched_serves_the_next_start_and_no_server_at_all(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        settings = settings_at(link, tmp_path)
        described = await link.describe()
        first = await find_sources(settings, link, described, QUIET)
        before = link.servers[0].traffic.down_bytes
        assert await find_sources(settings, link, described, QUIET) == first
        assert link.servers[0].traffic.down_bytes == before
    assert find_local_sources(settings, QUIET) == first
    assert find_local_sources(replace(settings, server="127.0.0.1:1"), QUIET) is None


async def test_a_server_that_is_replaced_by_one_with_another_drafter_gives_that_one_alone(
    source: Source, tmp_path: Path
) -> None:
    async with served(source, tmp_path) as link:
        settings = settings_at(link, tmp_path, dtype="float32")
        device = await load(link, settings)
    other = replace(source, drafter=save_drafter(tmp_path / "other.safetensors", small_drafter(), seed=9))
    async with served(other, tmp_path) as link:
        described = await link.describe()
        fitted = await refit(settings, link, described, device, 0.0)
        assert fitted is not None
        assert fitted.identity == described.identity != device.identity
        assert link.servers[0].traffic.down_bytes < other.drafter.stat().st_size + 5_000
        own = replace(settings, drafter=str(source.drafter))
        assert await refit(own, link, described, device, 0.0) is None
        described.identity.target_fingerprint = b"x" * 32
        with pytest.raises(MismatchError):
            await refit(settings, link, described, device, 0.0)
    async with served(source, tmp_path, drafter="none") as link:
        assert await refit(settings, link, await link.describe(), device.refused(), 0.0) is None


class Cut(Server):
    """Breaks each call after some messages."""

    after = 2

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        count = 0
        async for message in super().fetch(request):
            if request.name and count == self.after:
                raise UnavailableError("The server cannot be reached (cut).")
            count += 1
            yield message


class Impatient:
    """Waits for nothing."""

    def next_seconds(self) -> float:
        return 0.0

    def reset(self) -> None:
        """There is nothing to reset."""


@pytest.mark.parametrize("attempts", [6, 1], ids=["where it broke", "at the next start"])
async def test_a_download_continues(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(drafter_files, "CHUNK_BYTES", 1000 if attempts > 1 else 50_000)
    monkeypatch.setattr(fetching, "Backoff", Impatient)
    monkeypatch.setattr(fetching, "FRUITLESS_ATTEMPTS", attempts)
    wanted = everything(source)
    async with linked(host_of(source, tmp_path / "server"), Cut) as link:
        if attempts == 1:
            with says(UnavailableError, "The server cannot be reached (cut)"):
                await fetch(Fleet([link]), here(tmp_path), wanted, QUIET)
            [partial] = here(tmp_path).glob("fetched/*/*.partial")
            assert partial.stat().st_size == 100_000
            assert find_fetched(here(tmp_path), b"t" * 32, wanted) is None
            link = Server(link.address, 5.0, 10.0, link.security)
        parts = await fetch(Fleet([link]), here(tmp_path), wanted, QUIET)
        total, came = sum(path.stat().st_size for path in parts.files.folder.iterdir()), link.traffic.down_bytes
    assert came < (total - 90_000 if attempts == 1 else 1.7 * total)  # each break repeats one message of three
    [drafter] = parts.drafters.values()
    assert drafter.read_bytes() == source.drafter.read_bytes()
    assert not list(here(tmp_path).glob("fetched/*/*.partial"))


Change = Callable[[pb.FetchDrafterResponse], None]


class Liar(Server):
    """Changes what the server says."""

    change: Change

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            self.change(message)
            yield message


def listed(**fields: Any) -> Change:
    """Says something else about the first file."""

    def change(message: pb.FetchDrafterResponse) -> None:
        for name, value in fields.items() if message.manifest.files else ():
            setattr(message.manifest.files[0], name, value)

    return change


def grow_tensors(message: pb.FetchDrafterResponse) -> None:
    for entry in message.manifest.files:
        entry.size += (entry.kind != pb.PART_TEXT) << 30  # more than the tiny model can have


def empty(message: pb.FetchDrafterResponse) -> None:
    del message.manifest.files[:]


def flip(message: pb.FetchDrafterResponse) -> None:
    if message.chunk.data:
        message.chunk.data = bytes(each ^ 1 for each in message.chunk.data)


def shift(message: pb.FetchDrafterResponse) -> None:
    message.chunk.offset += 1 if message.chunk.data else 0


def lengthen(message: pb.FetchDrafterResponse) -> None:
    message.chunk.data += b"more" if message.chunk.data else b""


NAMES = ("../../outside.json", "/etc/passwd", "weights.bin", "model.py", "manifest.pb", "tokenizer.json")  # twice


@pytest.mark.parametrize(
    ("change", "error"),
    [
        *((listed(name=name), ProtocolError) for name in NAMES),
        (listed(size=1 << 60), ProtocolError),
        (listed(sha256=b"short"), ProtocolError),
        (grow_tensors, ProtocolError),
        (empty, ProtocolError),
        (flip, ChecksumError),
        (shift, ProtocolError),
        (lengthen, ProtocolError),
    ],
)
async def test_what_a_server_must_not_send(
    source: Source, tmp_path: Path, change: Change, error: type[MoaError]
) -> None:
    async with linked(host_of(source, tmp_path / "server"), Liar) as link:
        link.change = change
        with pytest.raises(error):
            await fetch(Fleet([link]), here(tmp_path), everything(source), QUIET)
    assert not (tmp_path / "outside.json").exists()


async def test_a_file_that_is_damaged_or_was_changed_on_the_disk_is_fetched_again(
    source: Source, tmp_path: Path
) -> None:
    wanted = everything(source)
    async with served(source, tmp_path) as link:
        digest = (await link.describe()).manifest_sha256
        parts = await fetch(link, here(tmp_path), wanted, QUIET)
        assert parts.manifest_sha256 == digest
        [drafter] = parts.drafters.values()
        for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json", drafter.name):
            path = parts.files.folder / name
            whole = path.read_bytes()
            path.write_text(EVIL)
            assert find_fetched(here(tmp_path), digest, wanted) is None
            assert await fetch(link, here(tmp_path), wanted, QUIET, digest) == parts
            assert path.read_bytes() == whole
        assert find_fetched(here(tmp_path), digest, wanted) == parts


async def test_text_files_alone_are_fetched_where_nothing_else_is_needed(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        lookup = await load(link, settings_at(link, tmp_path, drafter="lookup"))
        assert lookup.target.files.weights == ()
        assert link.servers[0].traffic.down_bytes < 50_000
        assert (await load(link, settings_at(link, tmp_path))).target.files.weights


async def test_a_server_without_a_drafter_has_no_embeddings_for_others(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path, drafter="none") as link:
        with says(NotFoundError, "The server has no embeddings for clients"):
            await load(link, settings_at(link, tmp_path, drafter="owner/drafter"))
        assert (await load(link, settings_at(link, tmp_path))).drafting is None


async def test_much_is_fetched_only_if_that_is_allowed_and_has_room(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(source, tmp_path) as link:
        with says(ConfigError, "Fetching the drafter for model takes 544 kB, more than the 100 kB that are"):
            await fetch(link, here(tmp_path), everything(source), QUIET, allowed=100_000)
        assert [path.name for path in here(tmp_path).glob("fetched/*/*.*")] == ["config.json"]
        with monkeypatch.context() as full:
            usage = shutil.disk_usage(tmp_path)
            full.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
            with says(DiskFullError, "What is fetched from the server needs 50.5 MB in TMP/client/fetched/DIGEST,"):
                await fetch(link, here(tmp_path), everything(source), QUIET)
        assert not list(here(tmp_path).glob("**/*.partial"))
        await fetch(link, here(tmp_path), everything(source), QUIET, allowed=10_000_000)


EVIL = "{% for m in messages %}w9 {{ m.content }} {% endfor %}"


class Impostor(Server):
    """A server that claims to be another one, and has a chat template of its own."""

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        described = await super().describe(seconds, prefix_hashes)
        described.identity.target_fingerprint = HONEST[0]
        return described

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            if message.HasField("manifest"):
                message.manifest.identity.target_fingerprint = HONEST[0]
            yield message


HONEST: list[bytes] = []


async def test_what_an_impostor_gave_is_never_used_with_the_honest_server(source: Source, tmp_path: Path) -> None:
    """Its fingerprint may be claimed; template, decoder and embeddings of a server come from that server."""
    evil = make_source(tmp_path / "evil", reused_layers=1)
    (evil.model / "chat_template.jinja").write_text(EVIL)
    async with served(source, tmp_path) as link:
        HONEST[:] = [(await link.describe()).identity.target_fingerprint]
        async with linked(host_of(evil, tmp_path / "evil server"), Impostor) as impostor:
            cheated = ClientSettings(server=impostor.address, cache_dir=here(tmp_path), drafter="lookup")
            described = await impostor.describe()
            described.manifest_sha256 = b""
            got = await find_sources(cheated, Fleet([impostor]), described, QUIET)
            assert load_tokenizer(got.files).chat_template == EVIL
        settings = settings_at(link, tmp_path, drafter="lookup")
        sources = await find_sources(settings, link, await link.describe(), QUIET)
        assert load_tokenizer(sources.files).chat_template != EVIL
        assert sources.files.folder != got.files.folder
    alone = find_local_sources(settings, QUIET)
    assert alone is not None
    assert alone.files == sources.files


async def test_a_list_that_is_not_the_described_one_is_refused(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        with says(ChecksumError, "The server's list of files differs from the one it described"):
            await fetch(link, here(tmp_path), everything(source), QUIET, b"x" * 32)
    assert not list(here(tmp_path).glob("fetched/*/*"))
