"""The companion that a server offers, on this device: found, or fetched if the user wants it.

It may be hundreds of megabytes, so nothing is fetched unasked, and what is fetched is said. It comes from the hub where
the server names it there, else from the server, and is used only if it is what the server describes. State: folders
`fetched/<sha256 of the manifest>`, as of `fetching`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ChecksumError, MismatchError, MoaError, NotFoundError, ProtocolError
from moa_shared.models import DEFAULT, ModelFiles, resolve
from moa_shared.models.gguf.entry import adopt_gguf
from moa_shared.models.sources.cache import cache_root, locked_meanwhile
from moa_shared.models.sources.files import describe_folder
from moa_shared.models.sources.hub import PREFIX, HubModel, pulled
from moa_shared.models.sources.packaged import DEFAULT_MODEL, find_installed
from moa_shared.programs.machine import si_bytes
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.programs.run_loop import run_reporting
from moa_shared.protocol.handshake_checks import manifest_sha256

from moa_client.device.fetching import WINDOW_BYTES, fetch_files, fetch_manifest, folder_of
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings

QUIET = SilentProgress()
_NONE = "Name one with --companion FILE, or leave --companion out."


def offered_words(offered: pb.Companion) -> str:
    return f"{offered.name} ({si_bytes(offered.bytes)})" if offered.bytes else offered.name


def find_offered(settings: ClientSettings, offered: pb.Companion) -> ModelFiles | None:
    """The companion, if it is on this device; None: it must be fetched."""
    root = cache_root(settings.cache_dir)
    if not offered.fingerprint:
        return None
    for found in (_find_installed, _find_pulled, _find_fetched):
        try:
            files = found(offered, root)
        except MoaError:
            continue  # damaged or gone: then it is fetched again
        if files is not None and files.fingerprint == offered.fingerprint.hex():
            return files
    return None


async def take_offered(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, progress: Progress
) -> ModelFiles:
    """The companion that a server offers; what is missing is fetched."""
    if not served.HasField("companion"):
        raise NotFoundError(f"The server of {served.identity.target_id} offers no companion.", hint=_NONE)
    offered = served.companion
    files = await asyncio.to_thread(find_offered, settings, offered)
    if files is not None:
        return files
    root = cache_root(settings.cache_dir)
    if _on_hub(offered) is not None:
        progress.note(f"The companion {offered_words(offered)} comes from the hub.")
        try:
            resolving = partial(resolve, offered.hub, settings.cache_dir)
            files = await run_reporting(resolving, progress, "companion")
            return _accept(files, offered)
        except MoaError as error:
            progress.note(f"{error.message} So it comes from the server.")
    server = fleet.shown.widened(WINDOW_BYTES)
    try:
        return _accept(await _fetch(server, root, offered, progress, settings.fetch_bytes), offered)
    finally:
        await server.close()


async def _fetch(server: Server, root: Path, offered: pb.Companion, progress: Progress, allowed: int) -> ModelFiles:
    manifest = await fetch_manifest(server, companion=True)
    digest = manifest_sha256(manifest)
    if offered.manifest_sha256 and digest != offered.manifest_sha256:
        raise ChecksumError(
            "The server's companion differs from the one it described.",
            hint="Start again: the server may have been restarted with another one.",
        )
    for entry in manifest.files:
        if entry.kind not in (pb.PART_TEXT, pb.PART_COMPANION):
            raise ProtocolError("files of a companion", f"{entry.name} of the kind {entry.kind}")
    folder = folder_of(root, digest)
    async with locked_meanwhile(folder, progress, asyncio.sleep):
        await fetch_files(
            server, root, folder, manifest.files, progress, f"the companion {offered.name}", allowed, companion=True
        )
        return await asyncio.to_thread(_describe, folder, offered, root)


def _accept(files: ModelFiles, offered: pb.Companion) -> ModelFiles:
    expected = offered.fingerprint.hex()
    if files.fingerprint != expected:
        raise MismatchError(f"companion {offered.name}", expected[:12], files.fingerprint[:12], hint=_NONE)
    return files


def _on_hub(offered: pb.Companion) -> HubModel | None:
    """Where a server says that its companion is on the hub; no path of this device may be named so."""
    return HubModel.parse(offered.hub) if offered.hub.startswith(PREFIX) else None


def _find_installed(offered: pb.Companion, root: Path) -> ModelFiles | None:
    """The default model, which may have been installed with moa."""
    return None if find_installed(DEFAULT_MODEL) is None else resolve(DEFAULT, root, QUIET)


def _find_pulled(offered: pb.Companion, root: Path) -> ModelFiles | None:
    named = _on_hub(offered)
    return resolve(offered.hub, root, QUIET) if named is not None and pulled(named) is not None else None


def _find_fetched(offered: pb.Companion, root: Path) -> ModelFiles | None:
    folder = folder_of(root, offered.manifest_sha256)
    return _describe(folder, offered, root) if offered.manifest_sha256 and folder.is_dir() else None


def _describe(folder: Path, offered: pb.Companion, root: Path) -> ModelFiles:
    """What was fetched; its files keep their names only once they are whole."""
    ggufs = sorted(folder.glob("model-*.gguf"))
    if ggufs:
        return adopt_gguf(ggufs[0], root, QUIET, target_id=offered.name)
    return describe_folder(folder, offered.name, root)
