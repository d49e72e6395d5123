"""A client that holds nothing fetches its half from the server, over links that break and from servers that lie."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import fetching
from moa_client.device.fetching import WantedParts, fetch, find_fetched
from moa_client.device.loading import load_device
from moa_client.device.refitting import refit
from moa_client.device.sources import find_local_sources, find_sources
from moa_client.in_process import begin
from moa_client.link.fleet import Fleet, connect
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
from moa_shared.programs.entry import StartLine
from moa_shared.programs.progress import SilentProgress

from tests.net.fetch_source import Source, make_source
from tests.net.server_peer import serving
from tests.support.messages import says
from tests.support.tiny_models import save_drafter, small_drafter

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
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 10.0)]) as link:
        yield link


def everything(source: Source) -> WantedParts:
    fingerprint = hashlib.sha256(source.drafter.read_bytes()).digest()
    return WantedParts(target=True, drafters=frozenset({fingerprint}), precision="bf16")


def here(tmp_path: Path) -> Path:
    return tmp_path / "client"


@pytest.mark.parametrize("precision", ["bf16", "packed"])
@pytest.mark.parametrize(("reused_layers", "tied"), [(1, False), (0, True)])
async def test_a_device_with_nothing_can_draft(tmp_path: Path, precision: Any, reused_layers: int, tied: bool) -> None:
    source = make_source(tmp_path / "source", reused_layers=reused_layers, tied=tied)
    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), dtype="float32", parts=precision)
        described = await link.describe()
        device = load_device(settings, described, QUIET, await find_sources(settings, link, described, QUIET))
    assert device.identity == described.identity
    assert device.drafting.drafter is not None
    assert device.drafting.drafter.reads_memory
    whole = resolve(str(source.model), tmp_path / "server")
    assert device.tokenizer.decode([7, 9]) == load_tokenizer(whole).decode([7, 9])
    assert device.end_of_text == {2}
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    mine, exact = WeightReader(device.files), WeightReader(whole)
    for name in names:
        step = np.abs(exact.array(name)).max() / 127
        assert (np.abs(mine.array(name) - exact.array(name)) <= step).all()
    fetched = sum(path.stat().st_size for path in device.files.folder.iterdir())
    assert fetched < sum(path.stat().st_size for path in source.model.iterdir()) + source.drafter.stat().st_size


async def test_files_that_fail_when_they_are_tried_are_refused_at_each_start(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, root: Path) -> str:
        raise ModelSourceError("They are hostile.")

    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        described = await link.describe()
        monkeypatch.setattr(fetching, "accept_tokenizer", refuse)
        for _ in range(2):
            with pytest.raises(ModelSourceError, match="They are hostile"):
                await find_sources(settings, link, described, QUIET)
    assert find_local_sources(settings, QUIET) is None


async def test_a_chat_without_a_chat_template_ends_before_anything_is_fetched(source: Source, tmp_path: Path) -> None:
    (source.model / "chat_template.jinja").unlink()
    async with served(source, tmp_path) as link, AsyncExitStack() as stack:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        with pytest.raises(ModelSourceError, match="no chat template"):
            await begin(settings, stack, StartLine(), print, single=True)
    assert not (here(tmp_path) / "fetched").exists()


async def test_what_was_fetched_serves_the_next_start_and_no_server_at_all(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        described = await link.describe()
        first = await find_sources(settings, link, described, QUIET)
        before = link.servers[0].traffic.down_bytes
        assert await find_sources(settings, link, described, QUIET) == first
        assert link.servers[0].traffic.down_bytes == before
    alone = find_local_sources(settings, QUIET)
    assert alone == first
    elsewhere = ClientSettings(server="127.0.0.1:1", cache_dir=here(tmp_path))
    assert find_local_sources(elsewhere, QUIET) is None


async def test_a_server_that_is_replaced_by_one_with_another_drafter_gives_that_one_alone(
    source: Source, tmp_path: Path
) -> None:
    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), dtype="float32")
        described = await link.describe()
        device = load_device(settings, described, QUIET, await find_sources(settings, link, described, QUIET))
    other = replace(source, drafter=save_drafter(tmp_path / "other.safetensors", small_drafter(), seed=9))
    async with served(other, tmp_path) as link:
        described = await link.describe()
        fitted = await refit(settings, link, described, device, 0.0)
        assert fitted is not None
        assert fitted.identity == described.identity != device.identity
        assert fitted.drafting.drafter is not device.drafting.drafter
        assert device.with_drafter_of(fitted).identity == described.identity
        assert link.servers[0].traffic.down_bytes < other.drafter.stat().st_size + 5_000
        own = replace(settings, drafter=str(source.drafter))
        assert await refit(own, link, described, device, 0.0) is None
    async with served(source, tmp_path, drafter="none") as link:
        assert await refit(settings, link, await link.describe(), device.refused(), 0.0) is None


async def test_no_drafter_is_taken_from_a_server_of_another_model(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        described = await link.describe()
        device = load_device(settings, described, QUIET, await find_sources(settings, link, described, QUIET))
        described.identity.target_fingerprint = b"x" * 32
        with pytest.raises(MismatchError):
            await refit(settings, link, described, device, 0.0)


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


async def test_a_download_continues_where_it_broke(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_files, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(fetching, "Backoff", Impatient)
    async with serving(host_of(source, tmp_path / "server")) as running:
        link = Cut(f"127.0.0.1:{running.port}", 5.0, 10.0)
        parts = await fetch(Fleet([link]), here(tmp_path), everything(source), QUIET)
        total = sum(path.stat().st_size for path in parts.files.folder.iterdir())
        assert link.traffic.down_bytes < 1.7 * total  # each break repeats one message of three
        await link.close()
    [drafter] = parts.drafters.values()
    assert drafter.read_bytes() == source.drafter.read_bytes()


async def test_a_download_that_was_given_up_continues_at_the_next_start(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_files, "CHUNK_BYTES", 50_000)
    monkeypatch.setattr(fetching, "Backoff", Impatient)
    monkeypatch.setattr(fetching, "FRUITLESS_ATTEMPTS", 1)
    async with serving(host_of(source, tmp_path / "server")) as running:
        link = Cut(f"127.0.0.1:{running.port}", 5.0, 10.0)
        with says(
            UnavailableError,
            "The server cannot be reached (cut)",
        ):
            await fetch(Fleet([link]), here(tmp_path), everything(source), QUIET)
        await link.close()
        [partial] = here(tmp_path).glob("fetched/*/*.partial")
        assert partial.stat().st_size == 100_000
        assert find_fetched(here(tmp_path), b"t" * 32, everything(source)) is None
        async with connect([Server(f"127.0.0.1:{running.port}", 5.0, 10.0)]) as whole:
            parts = await fetch(whole, here(tmp_path), everything(source), QUIET)
            sizes = sum(path.stat().st_size for path in parts.files.folder.iterdir())
            assert whole.servers[0].traffic.down_bytes < sizes - 90_000
    assert not list(here(tmp_path).glob("fetched/*/*.partial"))


class Impatient:
    """Waits for nothing."""

    def next_seconds(self) -> float:
        return 0.0

    def reset(self) -> None:
        """There is nothing to reset."""


class Liar(Server):
    """Changes what the server says."""

    change: Callable[[pb.FetchDrafterResponse], None]

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            type(self).change(message)
            yield message


def rename(name: str) -> Callable[[pb.FetchDrafterResponse], None]:
    def change(message: pb.FetchDrafterResponse) -> None:
        if message.manifest.files:
            message.manifest.files[0].name = name

    return change


def flip(message: pb.FetchDrafterResponse) -> None:
    if message.chunk.data:
        message.chunk.data = bytes([message.chunk.data[0] ^ 1]) + message.chunk.data[1:]


def shift(message: pb.FetchDrafterResponse) -> None:
    message.chunk.offset += 1 if message.chunk.data else 0


def lengthen(message: pb.FetchDrafterResponse) -> None:
    message.chunk.data += b"more" if message.chunk.data else b""


def grow(message: pb.FetchDrafterResponse) -> None:
    for entry in message.manifest.files:
        entry.size = 1 << 60


def grow_tensors(message: pb.FetchDrafterResponse) -> None:
    for entry in message.manifest.files:
        entry.size += (entry.kind != pb.PART_TEXT) << 30  # more than the tiny model can have


def shorten_hash(message: pb.FetchDrafterResponse) -> None:
    for entry in message.manifest.files:
        entry.sha256 = b"short"


def empty(message: pb.FetchDrafterResponse) -> None:
    del message.manifest.files[:]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (rename("../../outside.json"), ProtocolError),
        (rename("/etc/passwd"), ProtocolError),
        (rename("weights.bin"), ProtocolError),
        (rename("model.py"), ProtocolError),
        (rename("manifest.pb"), ProtocolError),
        (rename("tokenizer.json"), ProtocolError),  # twice
        (flip, ChecksumError),
        (shift, ProtocolError),
        (lengthen, ProtocolError),
        (grow, ProtocolError),
        (grow_tensors, ProtocolError),
        (shorten_hash, ProtocolError),
        (empty, ProtocolError),
    ],
)
async def test_what_a_server_must_not_send(
    source: Source, tmp_path: Path, change: Callable[[pb.FetchDrafterResponse], None], error: type[MoaError]
) -> None:
    async with serving(host_of(source, tmp_path / "server")) as running:
        link = type("AnyLiar", (Liar,), {"change": staticmethod(change)})(f"127.0.0.1:{running.port}", 5.0, 10.0)
        with pytest.raises(error):
            await fetch(Fleet([link]), here(tmp_path), everything(source), QUIET)
        await link.close()
    assert not (tmp_path / "outside.json").exists()


async def test_a_damaged_file_is_fetched_again(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        described = await link.describe()
        identity, digest = described.identity, described.manifest_sha256
        parts = await fetch(link, here(tmp_path), everything(source), QUIET)
        assert find_fetched(here(tmp_path), digest, everything(source)) == parts
        parts.drafters[identity.drafter_fingerprint].write_bytes(b"damaged")
        assert find_fetched(here(tmp_path), digest, everything(source)) is None
        again = await fetch(link, here(tmp_path), everything(source), QUIET)
        digest = hashlib.sha256(again.drafters[identity.drafter_fingerprint].read_bytes()).digest()
        assert digest == identity.drafter_fingerprint


async def test_text_files_alone_are_fetched_where_nothing_else_is_needed(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), drafter="lookup")
        sources = await find_sources(settings, link, await link.describe(), QUIET)
        assert sources.files.weights == ()
        assert link.servers[0].traffic.down_bytes < 50_000
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        assert (await find_sources(settings, link, await link.describe(), QUIET)).files.weights


async def test_a_server_without_a_drafter_has_no_embeddings_for_others(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path, drafter="none") as link:
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), drafter="owner/drafter")
        with says(
            NotFoundError,
            "The server has no embeddings in packed for clients",
        ):
            await find_sources(settings, link, await link.describe(), QUIET)
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path))
        described = await link.describe()
        device = load_device(settings, described, QUIET, await find_sources(settings, link, described, QUIET))
        assert device.drafting.drafter is None


async def test_much_is_fetched_only_if_that_is_allowed(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        with says(
            ConfigError,
            "Fetching the drafter for model takes 596 kB, more than the 100 kB that are",
        ):
            await fetch(link, here(tmp_path), everything(source), QUIET, allowed=100_000)
        assert [path.name for path in here(tmp_path).glob("fetched/*/*.*")] == ["config.json"]
        await fetch(link, here(tmp_path), everything(source), QUIET, allowed=10_000_000)


async def test_a_full_disk_is_seen_before_the_download(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(source, tmp_path) as link:
        await fetch(
            link, tmp_path / "another", WantedParts(target=False, drafters=frozenset(), precision="bf16"), QUIET
        )
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with says(
            DiskFullError,
            "What is fetched from the server needs 50.0 MB in TMP/client/fetched/DIGEST,",
        ):
            await fetch(link, here(tmp_path), everything(source), QUIET)
    assert not list(here(tmp_path).glob("**/*.partial"))


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
        async with serving(host_of(evil, tmp_path / "evil server")) as running:
            impostor = Impostor(f"127.0.0.1:{running.port}", 5.0, 10.0)
            cheated = ClientSettings(server=impostor.address, cache_dir=here(tmp_path), drafter="lookup")
            described = await impostor.describe()
            described.manifest_sha256 = b""
            got = await find_sources(cheated, Fleet([impostor]), described, QUIET)
            assert load_tokenizer(got.files).chat_template == EVIL
            await impostor.close()
        settings = ClientSettings(server=link.shown.address, cache_dir=here(tmp_path), drafter="lookup")
        sources = await find_sources(settings, link, await link.describe(), QUIET)
        assert load_tokenizer(sources.files).chat_template != EVIL
        assert sources.files.folder != got.files.folder
    alone = find_local_sources(settings, QUIET)
    assert alone is not None
    assert alone.files == sources.files


async def test_template_and_decoder_that_were_changed_on_the_disk_are_fetched_again(
    source: Source, tmp_path: Path
) -> None:
    async with served(source, tmp_path) as link:
        digest = (await link.describe()).manifest_sha256
        parts = await fetch(link, here(tmp_path), everything(source), QUIET)
        assert parts.manifest_sha256 == digest
        for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json"):
            (parts.files.folder / name).write_text(EVIL)
            assert find_fetched(here(tmp_path), digest, everything(source)) is None
            again = await fetch(link, here(tmp_path), everything(source), QUIET, digest)
            assert (again.files.folder / name).read_text() != EVIL


async def test_a_list_that_is_not_the_described_one_is_refused(source: Source, tmp_path: Path) -> None:
    async with served(source, tmp_path) as link:
        with says(
            ChecksumError,
            "The server's list of files differs from the one it described",
        ):
            await fetch(link, here(tmp_path), everything(source), QUIET, b"x" * 32)
    assert not list(here(tmp_path).glob("fetched/*/*"))
