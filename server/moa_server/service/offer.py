"""Files that are offered to clients: their manifest, and ranges of them.

Invariant: a range is given out only while its file is the one that was hashed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.checkpoint.statistics import CONFIDENCE_FILE
from moa_shared.drafter.companion import check_vocabulary, find_companion, measured_file
from moa_shared.errors import MismatchError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.sources.cache import cache_root, remembered_hash
from moa_shared.models.sources.files import WEIGHTS_INDEX
from moa_shared.models.sources.hub import PREFIX, HubModel
from moa_shared.models.weights.parts import TEXT_FILES
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import manifest_sha256

RANGE_BYTES = 4 << 20  # of one call: what gRPC may hold for a slow client, since awaiting a write holds nothing back
CHUNK_BYTES = 64 << 10  # lets verdicts of other calls pass between

Send = Callable[[pb.FetchDrafterResponse], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class OfferedFile:
    path: Path
    entry: pb.PartFile
    changed_at: int  # ns

    @classmethod
    def of(cls, path: Path, kind: pb.PartKind, root: Path, name: str | None = None) -> OfferedFile:
        """Hashes a file."""
        sha256, stat = bytes.fromhex(remembered_hash(path, root)), path.stat()
        entry = pb.PartFile(name=name or path.name, kind=pb.PartKind.Name(kind), size=stat.st_size, sha256=sha256)
        return cls(path, entry, stat.st_mtime_ns)

    async def send(self, offset: int, chunk_bytes: int, send: Send, moved: Callable[[], None]) -> None:
        """Sends a range from `offset` on. `moved`: called whenever the client has taken something in."""
        end = min(self.entry.size, offset + RANGE_BYTES)
        if offset >= end:
            return
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from None
        with file:
            stat = os.fstat(file.fileno())
            if (stat.st_size, stat.st_mtime_ns) != (self.entry.size, self.changed_at):
                raise self._gone("it has changed since the server started")
            file.seek(offset)
            while offset < end:
                data = await asyncio.to_thread(file.read, min(chunk_bytes, end - offset))
                if not data:  # truncated meanwhile: the client's check will say so
                    return
                await send(pb.FetchDrafterResponse(chunk=pb.PartChunk(offset=offset, data=data)))
                moved()
                offset += len(data)

    def _gone(self, why: str) -> NotFoundError:
        return NotFoundError(
            f"The server no longer has its file {self.entry.name}: {why}.",
            hint="Tell whoever runs it: it offers what is there when it starts.",
        )


class Offer:
    """What is fetched as one: the files of the client's half, or of a companion."""

    def __init__(self, identity: pb.Identity, files: Iterable[OfferedFile]) -> None:
        self._files = {file.entry.name: file for file in files}
        self.manifest = pb.PartManifest(identity=identity, files=[file.entry for file in self._files.values()])
        self.manifest_sha256 = manifest_sha256(self.manifest)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.manifest.files)

    def find(self, request: pb.FetchDrafterRequest) -> OfferedFile:
        file = self._files.get(request.name)
        if file is None:
            raise NotFoundError(
                f"The server has no file {request.name[:80]!r} for clients.", hint="Fetch the manifest."
            )
        if request.sha256 and request.sha256 != file.entry.sha256:
            raise MismatchError(
                f"file {request.name}",
                file.entry.sha256.hex()[:12],
                request.sha256.hex()[:12],
                hint="The server serves another model or drafter now: start again.",
            )
        return file


@dataclass(frozen=True, slots=True)
class CompanionFiles:
    """A companion's files.

    Args:
        hub: where devices get the same files from the hub, pinned to the revision; empty: they are not from there.
        confidence: says how far its text can be trusted beside the target; None: that was never measured.
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
        offered = []
        if self.confidence is not None:
            offered.append(OfferedFile.of(self.confidence, pb.PART_TEXT, root, CONFIDENCE_FILE))
        if weights[0].suffix == ".safetensors":
            texts = [files.folder / name for name in (*TEXT_FILES, WEIGHTS_INDEX) if (files.folder / name).is_file()]
            offered += [OfferedFile.of(path, pb.PART_TEXT, root) for path in texts]
            return Offer(identity, [*offered, *(OfferedFile.of(path, pb.PART_COMPANION, root) for path in weights)])
        return Offer(
            identity,
            offered
            + [
                OfferedFile.of(path, pb.PART_COMPANION, root, f"model-{number:05}-of-{len(weights):05}.gguf")
                for number, path in enumerate(weights, 1)
            ],
        )

    def described(self, offer: Offer | None) -> pb.Companion:
        """What clients are told of it. `offer`: None: not ready yet."""
        return pb.Companion(
            name=self.files.target_id,
            fingerprint=bytes.fromhex(self.files.fingerprint),
            family=str(self.files.config["model_type"]),
            bytes=offer.bytes if offer is not None else 0,
            manifest_sha256=offer.manifest_sha256 if offer is not None else b"",
            hub=self.hub,
        )


def offered_companion(
    spec: str, target: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> CompanionFiles:
    """The companion that an operator names.

    Args:
        spec: as of `moa_shared.models.resolve`, whose other arguments these are.
    """
    files = find_companion(spec, cache_dir, progress)
    if files.tokenizer_hash != target.tokenizer_hash:
        check_vocabulary(load_tokenizer(files), load_tokenizer(target), files.target_id, target.target_id)
    measured = measured_file(files, target, cache_root(cache_dir))
    return CompanionFiles(files, _hub_name(spec, files), measured and measured[0])


def _hub_name(spec: str, files: ModelFiles) -> str:
    """How the hub knows the model that `spec` has led to, pinned to its revision; empty: it is not from there."""
    named, snapshot = HubModel.parse(spec), files.weights[0].parent
    if named is None or Path(spec).expanduser().exists() or snapshot.parent.name != "snapshots":
        return ""
    return f"{PREFIX}{named.repo_id}@{snapshot.name}{f':{named.wanted}' if named.wanted else ''}"
