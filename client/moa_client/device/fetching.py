"""Fetches from a server what drafting for its target needs, or its companion, into the cache folder.

State: a folder `fetched/<sha256 of the manifest>` of complete, checked files, and `.partial` files next to them, from
which a broken download continues. The name does not rely on a server's claim: two servers share a folder only if every
file in it, including the chat template, is the same. Invariant: a file has its final name only once its sha256
matches the manifest. Nothing that is fetched is ever executed or unpickled.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import (
    ChecksumError,
    ConfigError,
    MoaError,
    NotFoundError,
    OverloadedError,
    ProtocolError,
    UnavailableError,
)
from moa_shared.models import ModelFiles
from moa_shared.models.files import accept_tokenizer, read_config
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.cache import hash_file, locked_meanwhile, remembered_hash, require_space, writing
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.machine import si_bytes
from moa_shared.programs.progress import Progress, Task
from moa_shared.protocol.handshake_checks import clean_texts, manifest_sha256

from moa_client.link.connection import Backoff
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server

FETCHED = "fetched"
RECORD = "manifest.pb"
PURPOSE = "what is fetched from the server"
MOST_FILES = 64  # a manifest names about fifteen
FRUITLESS_ATTEMPTS = 6  # in a row, about ten seconds: then the user should know
WINDOW_BYTES = 4 << 20  # the 64 KiB of a conversation would bound a download at 600 ms to half of what TCP carries
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(json|txt|model|jinja|safetensors)")
COMPANION_NAME = re.compile(rf"{NAME.pattern}|model-\d{{5}}-of-\d{{5}}\.gguf")
TENSORS = (pb.PART_EMBEDDINGS_PACKED, pb.PART_HEAD_PACKED, pb.PART_LAYERS_PACKED)
UNASKED_BYTES = 1_000_000_000  # what a model of 3 billion weights needs; one of 8 billion needs twice as much
MOST_TEXT = 64 << 20  # the largest tokenizer.json has 34 MB
HEADER_BYTES = 1 << 20  # of a file of tensors, at most, with vectors in float32
DRAFTER_LAYERS = 16  # published drafters have one to eight


@dataclass(frozen=True, slots=True)
class WantedParts:
    """Which of a server's files a client needs, besides configuration and tokenizer."""

    target: bool  # embeddings, head and reused layers: those of the deepest drafter, which include all others'
    drafters: Collection[bytes]  # fingerprints

    def of(self, manifest: pb.PartManifest) -> list[pb.PartFile]:
        kinds = {int(pb.PART_TEXT), *(TENSORS if self.target else ())}
        return [
            entry
            for entry in manifest.files
            if entry.kind in kinds or (entry.kind == pb.PART_DRAFTER and entry.sha256 in self.drafters)
        ]

    def lacking(self, chosen: Iterable[pb.PartFile]) -> str:
        """What is wanted but not among the chosen files; empty if nothing."""
        if not set(self.drafters) <= {entry.sha256 for entry in chosen}:
            return "drafter"
        return "embeddings" if self.target and TENSORS[0] not in {entry.kind for entry in chosen} else ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Parts on this disk; `drafters` are checkpoints by fingerprint."""

    files: ModelFiles
    drafters: dict[bytes, Path]
    manifest_sha256: bytes


def find_fetched(root: Path, digest: bytes, wanted: WantedParts) -> Fetched | None:
    """What was fetched before, if it is complete. `digest`: of the manifest, as the server describes it."""
    folder = folder_of(root, digest)
    try:
        manifest = pb.PartManifest.FromString((folder / RECORD).read_bytes())
        _check_manifest(manifest, NAME)
        if manifest_sha256(manifest) != digest:
            return None
        clean_texts(manifest)
        chosen = wanted.of(manifest)
        if wanted.lacking(chosen) or not all(_is_whole(folder, entry, root) for entry in chosen):
            return None
        return _describe(folder, root, manifest, chosen, digest)
    except (OSError, DecodeError, MoaError):
        return None  # then it is fetched again


async def fetch(
    fleet: Fleet,
    root: Path,
    wanted: WantedParts,
    progress: Progress,
    described: bytes = b"",
    allowed: int = UNASKED_BYTES,
) -> Fetched:
    """Fetches what is missing, at most `allowed` bytes. `described`: the manifest's sha256, as far as it is known."""
    server = fleet.shown.widened(WINDOW_BYTES)
    try:
        manifest, digest = await fetch_manifest(server, described)
        record = manifest.SerializeToString(deterministic=True)
        clean_texts(manifest)
        chosen = wanted.of(manifest)
        if lacking := wanted.lacking(chosen):
            hint = "Give --model and --drafter, or --drafter lookup or none."
            raise NotFoundError(f"The server has no {lacking} for clients.", hint=hint)
        folder, what = folder_of(root, digest), f"the drafter for {manifest.identity.target_id}"
        async with locked_meanwhile(folder, progress, asyncio.sleep):
            first = [entry for entry in chosen if entry.name == "config.json"]
            await fetch_files(server, root, folder, first, Progress(), what)
            config = await asyncio.to_thread(read_config, folder)
            check_family(config, manifest.identity.target_id)
            check_part_sizes(chosen, config)
            await fetch_files(server, root, folder, chosen, progress, what, allowed)
            parts = await asyncio.to_thread(_describe, folder, root, manifest, chosen, digest)
            with writing(folder, PURPOSE), whole_file(folder / RECORD, several_writers=True) as partial:
                partial.write_bytes(record)
        return parts
    finally:
        await server.close()


async def fetch_manifest(
    server: Server, described: bytes = b"", *, companion: bool = False
) -> tuple[pb.PartManifest, bytes]:
    """The list of what the server gives, or of its companion's files, and its sha256, as it was described."""
    async for message in server.fetch(pb.FetchDrafterRequest(companion=companion)):
        manifest = message.manifest
        _check_manifest(manifest, COMPANION_NAME if companion else NAME)
        digest = manifest_sha256(manifest)
        if described and digest != described:
            raise ChecksumError(
                "The server's list of files differs from the one it described.",
                hint="Start again: the server may have been restarted with another model, drafter or companion.",
            )
        return manifest, digest
    raise ProtocolError("a manifest", "the end of the call")


async def fetch_files(
    server: Server,
    root: Path,
    folder: Path,
    entries: Sequence[pb.PartFile],
    progress: Progress,
    what: str,
    allowed: int = UNASKED_BYTES,
    *,
    companion: bool = False,
) -> None:
    """Fetches those files of a manifest that are not in the folder, which is locked."""

    def find_missing() -> list[pb.PartFile]:
        with writing(folder, PURPOSE):
            folder.mkdir(parents=True, exist_ok=True)
        return [each for each in entries if not (_is_whole(folder, each, root) or _adopt(folder, each, root))]

    if not (missing := await asyncio.to_thread(find_missing)):  # which may hash large files
        return
    total, there = sum(entry.size for entry in missing), sum(_partial(folder, entry)[1] for entry in missing)
    await asyncio.to_thread(check_allowed, total - there, what, allowed, progress)  # which may ask
    require_space(folder, total - there, "What is fetched from the server")
    with progress.task(f"Fetching {what}", total, is_bytes=True) as task:
        task.reach(there)
        for entry in missing:
            await _fetch_file(server, folder, entry, task, companion=companion)


def _check_manifest(manifest: pb.PartManifest, allowed: re.Pattern[str]) -> None:
    if not 0 < len(manifest.files) <= MOST_FILES or len(manifest.identity.target_fingerprint) != 32:
        raise ProtocolError(f"a manifest of 1 to {MOST_FILES} files", f"{len(manifest.files)}")
    names = [entry.name for entry in manifest.files]
    for entry in manifest.files:
        is_plain = allowed.fullmatch(entry.name) and ".." not in entry.name and entry.name != RECORD
        if not is_plain or names.count(entry.name) > 1:
            raise ProtocolError("a plain name of a file to fetch", repr(entry.name[:100]))
        if entry.kind == pb.PART_TEXT and entry.size > MOST_TEXT:
            raise ProtocolError(f"at most {si_bytes(MOST_TEXT)} of {entry.name}", si_bytes(entry.size))
        if len(entry.sha256) != 32:
            raise ProtocolError(f"a sha256 for {entry.name}", f"{len(entry.sha256)} bytes")


async def _fetch_file(server: Server, folder: Path, entry: pb.PartFile, task: Task, *, companion: bool) -> None:
    """Fetches one file from where it broke off to its end, over as many calls and connections as it takes."""
    backoff, fruitless = Backoff(), 0
    partial, offset = _partial(folder, entry)
    while offset < entry.size:
        before = offset
        try:
            request = pb.FetchDrafterRequest(name=entry.name, offset=offset, sha256=entry.sha256, companion=companion)
            async for message in server.fetch(request):
                chunk = message.chunk
                if chunk.offset != offset or not 0 < len(chunk.data) <= entry.size - offset:
                    raise ProtocolError(f"{entry.name} from {offset} on", f"{len(chunk.data)} bytes at {chunk.offset}")
                with writing(folder, PURPOSE), partial.open("ab" if offset else "wb") as file:
                    file.write(chunk.data)
                offset += len(chunk.data)
                task.advance(len(chunk.data))
            if offset == before:
                raise ProtocolError(f"{entry.size} bytes of {entry.name}", f"{offset}")
            fruitless = 0
        except (UnavailableError, OverloadedError) as error:
            fruitless = 1 if offset > before else fruitless + 1
            if fruitless >= FRUITLESS_ATTEMPTS:
                hint = "Start again when the server is available: what has been received is kept."
                raise type(error)(error.message, hint=hint) from None
            if offset > before:
                backoff.reset()
            await asyncio.sleep(backoff.next_seconds())
            server.renew(server.channel_number)
    await asyncio.to_thread(_accept, partial, folder / entry.name, entry)


def _accept(partial: Path, final: Path, entry: pb.PartFile) -> None:
    if not entry.size:
        partial.touch()
    digest = hash_file(partial)
    if digest != entry.sha256.hex():
        partial.unlink()
        raise ChecksumError(
            f"{entry.name} from the server has the sha256 {digest[:12]}, expected {entry.sha256.hex()[:12]}.",
            hint="It was thrown away: start again, or use another server.",
        )
    with writing(final.parent, PURPOSE):
        partial.replace(final)


def _is_whole(folder: Path, entry: pb.PartFile, root: Path) -> bool:
    path = folder / entry.name
    return path.is_file() and remembered_hash(path, root) == entry.sha256.hex()


def _adopt(folder: Path, entry: pb.PartFile, root: Path) -> bool:
    """Links the same file from another server or an earlier manifest; False if there is none."""
    for other in (root / FETCHED).glob("*/"):
        if other != folder and _is_whole(other, entry, root):
            try:
                (folder / entry.name).unlink(missing_ok=True)
                (folder / entry.name).hardlink_to(other / entry.name)
            except OSError:
                return False  # a file system without links: then it is fetched
            return True
    return False


def _partial(folder: Path, entry: pb.PartFile) -> tuple[Path, int]:
    """Where a file grows, and how much of it is there."""
    path = folder / f"{entry.name}.{entry.sha256.hex()[:12]}.partial"
    size = path.stat().st_size if path.is_file() else 0
    if size > entry.size:
        path.unlink()
    return path, size if size <= entry.size else 0


def folder_of(root: Path, digest: bytes) -> Path:
    return root / FETCHED / digest.hex()


def _describe(
    folder: Path, root: Path, manifest: pb.PartManifest, chosen: Sequence[pb.PartFile], digest: bytes
) -> Fetched:
    """Describes the parts as a model's files, of which only those parts are read."""
    name, fingerprint = manifest.identity.target_id, manifest.identity.target_fingerprint.hex()
    weights = tuple(folder / entry.name for entry in chosen if entry.kind in TENSORS)
    files = ModelFiles(name, folder, read_config(folder), weights, fingerprint, accept_tokenizer(folder, root))
    drafters = {entry.sha256: folder / entry.name for entry in chosen if entry.kind == pb.PART_DRAFTER}
    return Fetched(files, drafters, digest)


def check_part_sizes(entries: Iterable[pb.PartFile], config: Mapping[str, Any]) -> None:
    """Raises ProtocolError for a file of tensors that is larger than the target and a drafter in float32."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    dim = max(int(config.get("head_dim") or hidden // heads), int(config.get("global_head_dim") or 0))
    inner, experts = (
        int(config.get("intermediate_size") or 0),
        config.get("num_experts") or config.get("num_local_experts") or 0,
    )
    width = 2 * inner + int(experts) * int(config.get("moe_intermediate_size") or inner)
    layer = hidden * (6 * heads * dim + 3 * width + 8 * hidden + 16)
    layers = int(config["num_hidden_layers"]) + DRAFTER_LAYERS
    most = HEADER_BYTES + 4 * (2 * hidden * int(config["vocab_size"]) + layers * layer)
    for entry in entries:
        if entry.size > most and entry.kind != pb.PART_TEXT:
            expected, hint = f"at most {si_bytes(most)} of {entry.name}", "Use another server, or give --model."
            raise ProtocolError(f"{expected} for this model", si_bytes(entry.size), hint=hint)


def check_allowed(nbytes: int, what: str, allowed: int, progress: Progress) -> None:
    """Raises ConfigError if more is to be fetched than the user allows, also when asked."""
    if nbytes > allowed and not progress.allows(f"Fetch {what} ({si_bytes(nbytes)})?"):
        gb = -(-nbytes // 100_000_000) / 10
        raise ConfigError(
            f"Fetching {what} takes {si_bytes(nbytes)}, more than the {si_bytes(allowed)} that are fetched unasked.",
            hint=f"Allow it with --fetch-gb {gb:g} (MOA_CLIENT_FETCH_GB), or do without (--drafter lookup).",
        )
