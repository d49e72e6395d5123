"""What clients may fetch: the client's half and a companion, each a manifest and ranges of its files (FetchDrafter).

State: the files, made and hashed once, when the server starts, in the cache folder. Invariant: what is given out is
what a manifest says, byte for byte; nothing but the manifests' files is ever read for a client.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import structlog
from moa.v1 import moa_pb2 as pb
from moa_kernels import GROUP, KernelError, QuantisedMatrix, quantised
from moa_shared.drafter.checkpoint import CONFIDENCE_FILE
from moa_shared.drafter.companion import check_vocabulary, find_companion, measured_file
from moa_shared.errors import (
    MismatchError,
    MoaError,
    NotFoundError,
    OverloadedError,
)
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.catalogue import expand
from moa_shared.models.files import WEIGHTS_INDEX
from moa_shared.models.hub import PREFIX, HubModel
from moa_shared.models.storage import cache
from moa_shared.models.storage.cache import cache_root, remembered_hash
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD, write_tensors
from moa_shared.models.weights import TEXT_FILES, Precision, WeightReader, layer_names
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import manifest_sha256
from moa_shared.protocol.memory_codec import round_to_bfloat16

RANGE_BYTES = 4 << 20  # of one call: what gRPC may hold for a slow client, since awaiting a write holds nothing back
CHUNK_BYTES = 64 << 10  # lets verdicts of other calls pass between

Send = Callable[[pb.FetchDrafterResponse], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class OfferedFile:
    path: Path
    entry: pb.PartFile
    changed_at: int  # ns

    @classmethod
    def of(cls, path: Path, kind: pb.PartKind, root: Path, name: str) -> OfferedFile:
        sha256, stat = bytes.fromhex(remembered_hash(path, root)), path.stat()
        entry = pb.PartFile(name=name, kind=pb.PartKind.Name(kind), size=stat.st_size, sha256=sha256)
        return cls(path, entry, stat.st_mtime_ns)

    async def send(self, offset: int, send: Send, moved: Callable[[], None]) -> None:
        """Sends a range from `offset` on. `moved`: called whenever the client has taken something in."""
        end = min(self.entry.size, offset + RANGE_BYTES)
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if (stat.st_size, stat.st_mtime_ns) != (self.entry.size, self.changed_at):
                    raise OSError("it has changed since the server started")
                file.seek(offset)
                while offset < end and (data := await asyncio.to_thread(file.read, min(CHUNK_BYTES, end - offset))):
                    await send(pb.FetchDrafterResponse(chunk=pb.PartChunk(offset=offset, data=data)))
                    moved()
                    offset += len(data)
        except OSError as error:
            raise NotFoundError(
                f"The server no longer has its file {self.entry.name}: {error.strerror or error}.",
                hint="Tell whoever runs it: it offers what is there when it starts.",
            ) from None


class Offer:
    """What is fetched as one: the files of the client's half, or of a companion."""

    def __init__(self, identity: pb.Identity, files: Iterable[OfferedFile]) -> None:
        self._files = {file.entry.name: file for file in files}
        self.manifest = pb.PartManifest(identity=identity, files=[file.entry for file in self._files.values()])
        self.manifest_sha256 = manifest_sha256(self.manifest)
        self.bytes = sum(entry.size for entry in self.manifest.files)

    def find(self, request: pb.FetchDrafterRequest) -> OfferedFile:
        file = self._files.get(request.name)
        if file is None:
            name = request.name[:80]
            raise NotFoundError(f"The server has no file {name!r} for clients.", hint="Fetch the manifest.")
        if request.sha256 and request.sha256 != file.entry.sha256:
            hint = "The server serves another model or drafter now: start again."
            names = (each.hex()[:12] for each in (file.entry.sha256, request.sha256))
            raise MismatchError(f"file {request.name}", *names, hint=hint)
        return file


@dataclass(frozen=True, slots=True)
class CompanionFiles:
    """A companion's files.

    `hub`: where devices get the same files from the hub, pinned to the revision; empty: they are not from there.
    `confidence`: says how far its text can be trusted beside the target; None: that was never measured.
    """

    files: ModelFiles
    hub: str = ""
    confidence: Path | None = None

    def offer(self, root: Path) -> Offer:
        """Hashes the files. GGUF files are named by number only: their names are the operator's own."""
        files, weights = self.files, self.files.weights
        identity = pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
        )
        offered = [] if self.confidence is None else [(self.confidence, pb.PART_TEXT, CONFIDENCE_FILE)]
        if weights[0].suffix == ".safetensors":
            texts = [files.folder / name for name in (*TEXT_FILES, WEIGHTS_INDEX)]
            offered += [(path, pb.PART_TEXT, path.name) for path in texts if path.is_file()]
            offered += [(path, pb.PART_COMPANION, path.name) for path in weights]
        else:
            of = f"of-{len(weights):05}.gguf"
            offered += [(path, pb.PART_COMPANION, f"model-{each:05}-{of}") for each, path in enumerate(weights, 1)]
        return Offer(identity, [OfferedFile.of(path, kind, root, name) for path, kind, name in offered])

    def described(self, offer: Offer) -> pb.Companion:
        return pb.Companion(
            name=self.files.target_id,
            fingerprint=bytes.fromhex(self.files.fingerprint),
            family=str(self.files.config["model_type"]),
            bytes=offer.bytes,
            manifest_sha256=offer.manifest_sha256,
            hub=self.hub,
        )


def offered_companion(
    spec: str, target: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> CompanionFiles:
    """The companion that an operator names.

    `spec`: as of `moa_shared.models.resolve`, whose other arguments these are.
    """
    files = find_companion(spec, cache_dir, progress)
    if files.tokenizer_hash != target.tokenizer_hash:
        check_vocabulary(load_tokenizer(files), load_tokenizer(target), files.target_id, target.target_id)
    measured = measured_file(files, target, cache_root(cache_dir))
    return CompanionFiles(files, _hub_name(spec, files), measured and measured[0])


def _hub_name(spec: str, files: ModelFiles) -> str:
    """How the hub knows the model that `spec` has led to, pinned to its revision; empty: it is not from there."""
    named, snapshot = HubModel.parse(expand(spec)), files.weights[0].parent
    if named is None or Path(spec).expanduser().exists() or snapshot.parent.name != "snapshots":
        return ""
    return f"{PREFIX}{named.repo_id}@{snapshot.name}{f':{named.wanted}' if named.wanted else ''}"


MOST_PLACES = 16  # each holds a range of a file


@dataclass(eq=False, slots=True)
class FetchPlace:
    """The place of one download. `owner`: whose it is: a key's, or an address; `limit`: expires if it is lost."""

    owner: str
    moved_at: float
    limit: asyncio.Timeout


class FetchPlaces:
    """The downloads that run: at most MOST_PLACES, shared evenly among those who want one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: list[FetchPlace] = []

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[Callable[[], None]]:
        """Holds a place; yields what is to be called whenever the client has taken something in."""
        self._make_room(owner)
        place = FetchPlace(owner, self._clock(), asyncio.timeout(None))

        def moved() -> None:
            place.moved_at = self._clock()

        self._taken.append(place)
        try:
            async with place.limit:
                yield moved
        except TimeoutError:
            if not place.limit.expired():
                raise
            words = f"More than {MOST_PLACES} devices are fetching, and another one needed this place."
            raise OverloadedError(words, hint="Call again to resume.") from None
        finally:
            if place in self._taken:
                self._taken.remove(place)

    def _make_room(self, owner: str) -> None:
        """The download gives way that moved longest ago: of those who have more than this owner, else of its own."""
        if len(self._taken) < MOST_PLACES:
            return
        held = Counter(place.owner for place in self._taken)
        most = max(held.values())
        whose = [each for each in held if held[each] == most > held[owner]] or [owner]
        may_lose = [each for each in self._taken if each.owner in whose] or self._taken
        lost = min(may_lose, key=lambda place: place.moved_at)
        self._taken.remove(lost)
        lost.limit.reschedule(0.0)


log = structlog.get_logger()

PRECISIONS: dict[Precision, tuple[pb.PartKind, ...]] = {
    "bf16": (pb.PART_EMBEDDINGS_BF16, pb.PART_HEAD_BF16, pb.PART_LAYERS_BF16),
    "packed": (pb.PART_EMBEDDINGS_PACKED, pb.PART_HEAD_PACKED, pb.PART_LAYERS_PACKED),
}


@dataclass(frozen=True, slots=True)
class DrafterFile:
    path: Path
    reused_layers: int
    reads_head: bool = True


class DrafterFiles:
    """The client's half of what is served.

    `drafters`: the first one is that whose memory is served; none: clients get only the text files.
    """

    def __init__(
        self,
        files: ModelFiles,
        identity: pb.Identity,
        drafters: Sequence[DrafterFile],
        cache_dir: Path | None = None,
        companion: CompanionFiles | None = None,
    ) -> None:
        self.manifest_sha256 = b""  # of the manifest of the client's half; empty: there is none
        self.companion: pb.Companion | None = None  # what clients are told of it
        self._files = files
        self._identity = identity
        self._drafters = tuple(drafters)
        self._cache_dir = cache_dir
        self._companion = companion
        self._offers: dict[bool, Offer] = {}  # False: of the client's half; True: of the companion
        self._places = FetchPlaces()

    def prepare(self) -> None:
        """Makes and hashes the files. What cannot be read or made is not offered, and the log says why."""
        root, companion = cache_root(self._cache_dir), self._companion
        try:
            offer = self._offers[False] = Offer(self._identity, self._own_files(root))
            self.manifest_sha256 = offer.manifest_sha256
            log.info("parts for clients are ready", files=len(offer.manifest.files), bytes=offer.bytes)
        except (MoaError, OSError) as error:
            log.warning("parts for clients are not offered", reason=str(error))
        try:
            if companion is not None:
                offer = self._offers[True] = companion.offer(root)
                self.companion = companion.described(offer)
                log.info("a companion is offered", companion=self.companion.name, bytes=offer.bytes)
        except (MoaError, OSError) as error:
            log.warning("the companion is not offered", reason=str(error))

    async def answer(self, request: pb.FetchDrafterRequest, send: Send, owner: str) -> None:
        if (offer := self._offers.get(request.companion)) is None:
            what = "companion" if request.companion else "drafter"
            raise NotFoundError(f"The server offers no {what}.", hint="Leave it out, or ask whoever runs the server.")
        async with self._places.take(owner) as moved:
            if request.name:
                await offer.find(request).send(request.offset, send, moved)
            else:
                await send(pb.FetchDrafterResponse(manifest=offer.manifest))

    def _own_files(self, root: Path) -> Iterator[OfferedFile]:
        for name in TEXT_FILES:
            if (path := self._files.folder / name).is_file():
                yield OfferedFile.of(path, pb.PART_TEXT, root, name)
        for path, kind in self._tensors(root) if self._drafters else ():
            yield OfferedFile.of(path, kind, root, path.name)
        for drafter in self._drafters:
            name = f"drafter-{remembered_hash(drafter.path, root)[:16]}.safetensors"
            yield OfferedFile.of(drafter.path, pb.PART_DRAFTER, root, name)

    def _tensors(self, root: Path) -> list[tuple[Path, pb.PartKind]]:
        """The files of tensors, made once and kept in the cache."""
        files, reader = self._files, WeightReader(self._files)
        reused = max(drafter.reused_layers for drafter in self._drafters)
        reads_head = any(drafter.reads_head for drafter in self._drafters)
        label = reused if reads_head else "no-head"
        entry = root / "served-parts" / f"{files.fingerprint[:32]}-{label}-v{cache.FORMAT}"
        parts: list[tuple[str, Sequence[str]]] = [  # as PRECISIONS has their kinds
            ("embeddings", [EMBEDDINGS]),
            ("head", [HEAD] if HEAD in reader.names() and reads_head else []),
            (f"layers-{reused}", layer_names(files, reused) if reused else []),
        ]
        made = [
            (f"{name}.{precision}.safetensors", tensors, precision, kind)
            for precision, kinds in PRECISIONS.items()
            for (name, tensors), kind in zip(parts, kinds, strict=True)
            if tensors
        ]
        with cache.locked(entry):
            try:
                cache.check_manifest(entry, root)
            except MoaError as error:  # there are none, or damaged ones
                if entry.exists():
                    log.warning("parts for clients are made again", reason=error.message)
                numbers = sum(math.prod(reader.shape(name)) for _, tensors in parts for name in tensors)
                nbytes = 4 * numbers  # bf16, and packed at most that again
                with cache.building(entry, nbytes, "What clients fetch") as folder:
                    for name, tensors, precision, _ in made:
                        write_part(reader, tensors, folder / name, precision)
                    cache.write_manifest(folder, files.target_id, files.fingerprint)
        return [(entry / name, kind) for name, _, _, kind in made]


def write_part(reader: WeightReader, names: Sequence[str], path: Path, precision: Precision) -> None:
    """Write tensors in bfloat16, or packed (matrices whose rows are no groups of 32 in bfloat16 then too)."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name in names:
        if precision == "packed":
            tensors |= _pack(reader, name)
        else:
            tensors[name] = round_to_bfloat16(reader.array(name))
    write_tensors(path, tensors)


def _pack(reader: WeightReader, name: str) -> dict[str, npt.NDArray[Any]]:
    shape = reader.shape(name)
    if len(shape) != 2:
        return {name: reader.array(name)}
    if not shape[1] % GROUP:
        with suppress(KernelError):  # a scale out of float16's range
            blocks = reader.blocks(name)
            if not isinstance(blocks, QuantisedMatrix):
                blocks = quantised(reader.array(name))
            return {f"{name}.{blocks.kind}": blocks.raw}
    return {name: round_to_bfloat16(reader.array(name))}
