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
from moa_shared.errors import MismatchError, NotFoundError
from moa_shared.models.sources.digest import remembered_hash
from moa_shared.protocol.handshake_checks import manifest_sha256

RANGE_BYTES = 4 << 20  # of one call: what gRPC may hold for a slow client, since awaiting a write holds nothing back
CHUNK_BYTES = 64 << 10  # lets verdicts of other calls pass between

Send = Callable[[pb.FetchDrafterResponse], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A file, with what tells that it has changed."""

    path: Path
    entry: pb.PartFile
    changed_at: int  # ns

    @classmethod
    def of(cls, path: Path, kind: pb.PartKind, root: Path, name: str | None = None) -> OfferedFile:
        """Hashes a file.

        Args:
            root: the cache folder, where hashes are remembered.
            name: that clients know it by; None: its own.

        Raises:
            NotFoundError: no such file.
            OSError: it cannot be read.
        """
        sha256, stat = bytes.fromhex(remembered_hash(path, root)), path.stat()
        entry = pb.PartFile(name=name or path.name, kind=pb.PartKind.Name(kind), size=stat.st_size, sha256=sha256)
        return cls(path, entry, stat.st_mtime_ns)

    async def send(self, offset: int, chunk_bytes: int, send: Send, moved: Callable[[], None]) -> None:
        """Sends a range from `offset` on.

        Args:
            moved: called whenever the client has taken something in.

        Raises:
            NotFoundError: the file is no longer there, or another one.
        """
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
    """What is fetched as one: the files of the client's half, or of a companion.

    Args:
        identity: of the model whose files they are.
    """

    def __init__(self, identity: pb.Identity, files: Iterable[OfferedFile]) -> None:
        self._files = {file.entry.name: file for file in files}
        self.manifest = pb.PartManifest(identity=identity, files=[file.entry for file in self._files.values()])
        self.manifest_sha256 = manifest_sha256(self.manifest)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(entry.size for entry in self.manifest.files)

    def find(self, request: pb.FetchDrafterRequest) -> OfferedFile:
        """The file that a client asks for.

        Raises:
            NotFoundError: no file of that name.
            MismatchError: it is not the one that the client began to fetch.
        """
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
