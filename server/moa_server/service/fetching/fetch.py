"""What clients may fetch: the manifest of the client's half, and ranges of its files (FetchDrafter).

State: the files, made and hashed once, when the server starts, in the cache folder. Invariant: what is given out is
what the manifest says, byte for byte; nothing but the manifest's files is ever read for a client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError, DiskFullError, MismatchError, MoaError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import building, cache_root, locked
from moa_shared.models.sources.digest import remembered_hash
from moa_shared.models.sources.manifest import FORMAT, MANIFEST, check_manifest, write_manifest
from moa_shared.models.weights.parts import TEXT_FILES, Precision, layer_names, write_part
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, WeightReader
from moa_shared.protocol.handshake_checks import manifest_sha256

from moa_server.service.fetching.fetch_places import FetchPlaces

log = structlog.get_logger()

RANGE_BYTES = 4 << 20  # of one call: what gRPC may hold for a slow client, since awaiting a write holds nothing back
CHUNK_BYTES = 64 << 10  # lets verdicts of other calls pass between
PRECISIONS: dict[Precision, tuple[pb.PartKind, ...]] = {
    "bf16": (pb.PART_EMBEDDINGS_BF16, pb.PART_HEAD_BF16, pb.PART_LAYERS_BF16),
    "packed": (pb.PART_EMBEDDINGS_PACKED, pb.PART_HEAD_PACKED, pb.PART_LAYERS_PACKED),
}

Send = Callable[[pb.FetchDrafterResponse], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """A checkpoint that clients may use.

    Args:
        reused_layers: of the target, which it needs.
        reads_head: it needs the target's head.
    """

    path: Path
    reused_layers: int
    reads_head: bool = True


@dataclass(frozen=True, slots=True)
class _OfferedFile:
    path: Path
    entry: pb.PartFile


class DrafterFiles:
    """The client's half of what is served.

    Args:
        files: the target's.
        identity: what the server describes.
        drafters: the first one is that whose memory is served; none: clients get only the text files.
        cache_dir: where parts are kept.
        chunk_bytes: the largest piece of a file in one message.
    """

    def __init__(
        self,
        files: ModelFiles,
        identity: pb.Identity,
        drafters: Sequence[DrafterFile],
        cache_dir: Path | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._files = files
        self._identity = identity
        self._drafters = tuple(drafters)
        self._cache_dir = cache_dir
        self._chunk_bytes = min(chunk_bytes, CHUNK_BYTES)
        self._parts: dict[str, _OfferedFile] = {}
        self._manifest = pb.PartManifest()
        self._lock = asyncio.Lock()
        self._places = FetchPlaces()
        self._preparation: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Makes the parts while the server starts, so that no client's first call makes them during answers."""
        self._preparation = asyncio.create_task(self._prepare_early())

    async def stop(self) -> None:
        """Makes no further part; one that is being written is finished."""
        if self._preparation is not None:
            self._preparation.cancel()
            await asyncio.gather(self._preparation, return_exceptions=True)

    async def _prepare_early(self) -> None:
        try:
            await self._ready()
        except MoaError as error:
            log.warning("parts for clients cannot be made yet", reason=error.message)

    @property
    def manifest_sha256(self) -> bytes:
        """The manifest's hash; empty until the manifest is made."""
        return manifest_sha256(self._manifest) if self._parts else b""

    def prepare(self) -> None:
        """Makes and hashes the files now; if that fails, the first request tries again and gets the error."""
        try:
            self._make_ready()
        except MoaError as error:
            log.warning("parts for clients are not ready", reason=error.message)

    async def answer(self, request: pb.FetchDrafterRequest, send: Send, owner: str) -> None:
        """Answers one call.

        Args:
            owner: who calls (`Caller.owner`).

        Raises:
            NotFoundError: no file of that name.
            MismatchError: the file is not the one that the client began to fetch.
            OverloadedError: too many downloads at once.
            MoaError: the parts cannot be made.
        """
        async with self._places.take(owner) as moved:
            parts = await self._ready()
            if request.name:
                await self._send_range(_find(parts, request), request.offset, send, moved)
            else:
                await send(pb.FetchDrafterResponse(manifest=self._manifest))

    async def _send_range(self, part: _OfferedFile, offset: int, send: Send, moved: Callable[[], None]) -> None:
        end = min(part.entry.size, offset + RANGE_BYTES)
        if offset >= end:
            return
        with part.path.open("rb") as file:
            file.seek(offset)
            while offset < end:
                data = await asyncio.to_thread(file.read, min(self._chunk_bytes, end - offset))
                if not data:  # truncated since it was hashed: the client's check will say so
                    return
                await send(pb.FetchDrafterResponse(chunk=pb.PartChunk(offset=offset, data=data)))
                moved()
                offset += len(data)

    async def _ready(self) -> dict[str, _OfferedFile]:
        async with self._lock:
            if not self._parts:
                await asyncio.to_thread(self._make_ready)
        return self._parts

    def _make_ready(self) -> None:
        parts = self._prepare()
        self._manifest = pb.PartManifest(identity=self._identity, files=[part.entry for part in parts.values()])
        self._parts = parts
        size = sum(part.entry.size for part in parts.values())
        log.info("parts for clients are ready", files=len(parts), bytes=size)

    def _prepare(self) -> dict[str, _OfferedFile]:
        """Makes the missing files and hashes all of them."""
        root = cache_root(self._cache_dir)
        found: dict[str, _OfferedFile] = {}

        def offer(path: Path, kind: pb.PartKind, name: str | None = None) -> None:
            sha256 = bytes.fromhex(remembered_hash(path, root))
            name = name or path.name
            entry = pb.PartFile(name=name, kind=pb.PartKind.Name(kind), size=path.stat().st_size, sha256=sha256)
            found[name] = _OfferedFile(path, entry)

        try:
            for name in TEXT_FILES:
                if (path := self._files.folder / name).is_file():
                    offer(path, pb.PART_TEXT)
            if self._drafters:
                for path, kind in self._tensors(root):
                    offer(path, kind)
            for drafter in self._drafters:
                sha256 = remembered_hash(drafter.path, root)
                offer(drafter.path, pb.PART_DRAFTER, f"drafter-{sha256[:16]}.safetensors")
        except DiskFullError as error:
            log.exception("parts for clients cannot be made", reason=error.message)
            raise DiskFullError(
                "The server's disk has no room for what clients fetch.",
                hint="Tell whoever runs it, or give --model and --drafter.",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"The server cannot read its own files: {error.strerror or error}.", hint="Tell whoever runs it."
            ) from error
        return found

    def _tensors(self, root: Path) -> list[tuple[Path, pb.PartKind]]:
        """The files of tensors, made once and kept in the cache."""
        files = self._files
        reused = max(drafter.reused_layers for drafter in self._drafters)
        reads_head = any(drafter.reads_head for drafter in self._drafters)
        entry = root / "served-parts" / f"{files.fingerprint[:32]}-{reused if reads_head else 'no-head'}-v{FORMAT}"
        plan = [("embeddings", [EMBEDDINGS])]
        reader = WeightReader(files)
        plan += [("head", [HEAD])] if reader.has_own_head and reads_head else []
        plan += [(f"layers-{reused}", layer_names(files, reused))] if reused else []
        with locked(entry):
            if (entry / MANIFEST).is_file():
                try:
                    check_manifest(entry, root)
                except MoaError as error:
                    log.warning("parts for clients are made again", reason=error.message)
                    (entry / MANIFEST).unlink()
            if not (entry / MANIFEST).is_file():
                self._make(entry, plan, reader)
        order = {"embeddings": 0, "head": 1, f"layers-{reused}": 2}
        return [
            (entry / f"{name}.{precision}.safetensors", kinds[order[name]])
            for precision, kinds in PRECISIONS.items()
            for name, _ in plan
        ]

    def _make(self, entry: Path, plan: Sequence[tuple[str, Sequence[str]]], reader: WeightReader) -> None:
        numbers = sum(math.prod(reader.shape(name)) for _, names in plan for name in names)
        with building(entry, 4 * numbers, "What clients fetch") as folder:  # bf16, and packed at most that again
            for precision in PRECISIONS:
                for name, tensors in plan:
                    write_part(reader, tensors, folder / f"{name}.{precision}.safetensors", precision)
            write_manifest(folder, self._files.target_id, self._files.fingerprint)


def _find(parts: dict[str, _OfferedFile], request: pb.FetchDrafterRequest) -> _OfferedFile:
    part = parts.get(request.name)
    if part is None:
        raise NotFoundError(f"The server has no file {request.name[:80]!r} for clients.", hint="Fetch the manifest.")
    if request.sha256 and request.sha256 != part.entry.sha256:
        raise MismatchError(
            f"file {request.name}",
            part.entry.sha256.hex()[:12],
            request.sha256.hex()[:12],
            hint="The server serves another model or drafter now: start again.",
        )
    return part
