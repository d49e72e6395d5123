"""FetchDrafter: the manifest, ranges of files, and what is refused."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.loading import load_host
from moa_server.service import fetch
from moa_server.service.fetch import DrafterFile, DrafterFiles
from moa_server.settings import ServerSettings
from moa_shared.errors import NotFoundError
from moa_shared.models import resolve
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.handshake_checks import CODE_KEY

from tests.net.fetch_source import Source, make_source
from tests.net.server_peer import serving, trailer


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", reused_layers=1)


@asynccontextmanager
async def stub(source: Source, cache: Path, **changes: Any) -> AsyncIterator[Any]:
    settings = ServerSettings(
        model=str(source.model), drafter=str(source.drafter), execution="int8", port=0, cache_dir=cache, **changes
    )
    host = load_host(settings, SilentProgress())
    async with serving(host) as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield moa_pb2_grpc.MoaStub(channel)


async def manifest(client: Any) -> pb.PartManifest:
    [answer] = [part async for part in client.FetchDrafter(pb.FetchDrafterRequest())]
    assert isinstance(answer, pb.FetchDrafterResponse)
    return answer.manifest


async def read(client: Any, entry: pb.PartFile) -> bytes:
    data = b""
    while len(data) < entry.size:
        request = pb.FetchDrafterRequest(name=entry.name, offset=len(data), sha256=entry.sha256)
        async for part in client.FetchDrafter(request):
            assert part.chunk.offset == len(data)
            data += part.chunk.data
    return data


async def test_every_file_of_the_manifest_can_be_read_in_ranges(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RANGE_BYTES", 10_000)
    async with stub(source, tmp_path / "cache") as client:
        told = await manifest(client)
        for entry in told.files:
            data = await read(client, entry)
            assert (len(data), hashlib.sha256(data).digest()) == (entry.size, entry.sha256)
    kinds = [entry.kind for entry in told.files]
    assert kinds.count(pb.PART_DRAFTER) == 1
    assert {kind for precision in fetch.PRECISIONS.values() for kind in precision} < set(kinds)
    assert told.identity.drafter_fingerprint == next(e.sha256 for e in told.files if e.kind == pb.PART_DRAFTER)
    assert told.identity.target_fingerprint.hex() == resolve(str(source.model), tmp_path / "cache").fingerprint


async def test_what_is_made_once_is_used_again_and_what_is_damaged_is_made_again(
    source: Source, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    async with stub(source, cache) as client:
        first = await manifest(client)
    [made] = (cache / "served-parts").glob("*/embeddings.bf16.safetensors")
    before = made.stat().st_ino
    async with stub(source, cache) as client:
        assert await manifest(client) == first
    assert made.stat().st_ino == before
    made.write_bytes(b"damaged")
    async with stub(source, cache) as client:
        assert await manifest(client) == first


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.FetchDrafterRequest(name="../../etc/passwd"), "not_found"),
        (pb.FetchDrafterRequest(name="model.safetensors"), "not_found"),
        (pb.FetchDrafterRequest(name="config.json", sha256=b"another"), "mismatch"),
    ],
)
async def test_what_is_not_for_clients_is_refused(
    source: Source, tmp_path: Path, request_: pb.FetchDrafterRequest, code: str
) -> None:
    async with stub(source, tmp_path / "cache") as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in client.FetchDrafter(request_):
                pass
        assert trailer(refused.value, CODE_KEY) == code


async def test_several_drafters_and_none(source: Source, tmp_path: Path) -> None:
    files = resolve(str(source.model), tmp_path / "cache")
    second = tmp_path / "second.safetensors"
    second.write_bytes(source.drafter.read_bytes() + b" ")
    told: list[pb.FetchDrafterResponse] = []

    async def send(message: pb.FetchDrafterResponse) -> None:
        told.append(message)

    several = DrafterFiles(
        files, pb.Identity(), [DrafterFile(source.drafter, 1), DrafterFile(second, 2)], tmp_path / "cache"
    )
    with pytest.raises(NotFoundError, match="The server offers no drafter"):
        await several.answer(pb.FetchDrafterRequest(), send, "nobody")
    several.prepare()
    await several.answer(pb.FetchDrafterRequest(), send, "nobody")
    kinds = {entry.name: entry.kind for entry in told[0].manifest.files}
    assert list(kinds.values()).count(pb.PART_DRAFTER) == 2
    assert kinds["layers-2.packed.safetensors"] == pb.PART_LAYERS_PACKED
    without = DrafterFiles(files, pb.Identity(), [], tmp_path / "cache")
    without.prepare()
    await without.answer(pb.FetchDrafterRequest(), send, "nobody")
    assert {entry.kind for entry in told[1].manifest.files} == {pb.PART_TEXT}
