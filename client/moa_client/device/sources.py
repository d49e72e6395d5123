"""What of a server's model, and of the companion that it offers, is on this device: found there, or fetched.

A server's description is stored by its address, so that the device can continue when the server is unavailable. A
companion may be hundreds of megabytes, so it is fetched only if the user wants it, and said: from the hub where the
server names it there, else from the server. It is used only if it is what the server describes.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError
from moa.v1 import moa_pb2 as pb
from moa_shared.drafter import checkpoint
from moa_shared.drafter.companion import find_companion, fitting_companions
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import MismatchError, MoaError, NotFoundError, ProtocolError
from moa_shared.models import DEFAULT, ModelFiles, resolve
from moa_shared.models.files import describe_folder
from moa_shared.models.gguf_entry import adopt_gguf, describe_entry, entry_of, is_ready
from moa_shared.models.hub import PREFIX, HubModel, pulled
from moa_shared.models.source import DEFAULT_MODEL, find_installed, resolve_packaged
from moa_shared.models.storage import cache
from moa_shared.programs.machine import si_bytes
from moa_shared.programs.progress import Progress
from moa_shared.programs.run_loop import run_reporting
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION

from moa_client.device import fetching
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings

NONE = "none"  # --drafter: nobody drafts here
FILELESS = ("lookup", NONE)  # --drafter: what no file is read for
AUTO = "auto"  # --drafter: the fastest here of those that the server gives memory for
QUIET = Progress()
NAME_ONE = "Name one with --companion FILE, or leave --companion out."


@dataclass(frozen=True, slots=True)
class Sources:
    served: pb.DescribeResponse  # what the server describes, or described when last available
    files: ModelFiles
    drafters: Mapping[bytes, Path]  # checkpoints that --drafter means, by fingerprint
    companion: ModelFiles | None = None  # the one that the server offers, if --companion means that and it is here
    stands_in: bool = False  # nothing of a target is here: the files are those of the companion


def meant_drafters(settings: ClientSettings, served: pb.DescribeResponse) -> list[pb.Drafter]:
    """The server's drafters that --drafter means: all, the first, or the one named; none if it means another one."""
    offered = list(served.drafters)
    if not offered and served.identity.drafter_fingerprint:
        offered = [pb.Drafter(name=checkpoint.DEFAULT_DRAFTER, fingerprint=served.identity.drafter_fingerprint)]
    if settings.drafter == AUTO:
        return offered
    if settings.drafter == checkpoint.DEFAULT_DRAFTER:
        return offered[:1]
    return [each for each in offered if each.name == settings.drafter and each.name in checkpoint.SHIPPED_DRAFTERS]


def means_served(settings: ClientSettings) -> bool:
    """Whether --drafter leaves the choice to the server or to this device."""
    return settings.drafter in (AUTO, checkpoint.DEFAULT_DRAFTER)


async def find_sources(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, progress: Progress
) -> Sources:
    """Everything for this server's target; what is missing is fetched from it."""
    root, described = cache.cache_root(settings.cache_dir), served.manifest_sha256
    _remember(settings, served)
    found, wanted = find_present(settings, served, progress)
    if found is not None:
        return found
    parts = await fetching.fetch(fleet, root, wanted, progress, described, settings.fetch_bytes)
    if parts.manifest_sha256 != described:  # the server had not reported it yet
        served.manifest_sha256 = parts.manifest_sha256
        _remember(settings, served)
    files = parts.files if wanted.target else _find_target(settings, served, progress) or parts.files
    return Sources(served, files, {**_installed(settings, served), **parts.drafters})


def find_present(
    settings: ClientSettings, served: pb.DescribeResponse, progress: Progress
) -> tuple[Sources | None, fetching.WantedParts]:
    """What is here for this server; None if something must be fetched. And what is not installed."""
    root, files = cache.cache_root(settings.cache_dir), _find_target(settings, served, progress)
    drafters, meant = _installed(settings, served), {each.fingerprint for each in meant_drafters(settings, served)}
    drafts_itself = bool(meant) if means_served(settings) else settings.drafter not in FILELESS
    wanted = fetching.WantedParts(drafts_itself and files is None, frozenset(meant - drafters.keys()))
    if files is None or wanted.drafters:
        parts = fetching.find_fetched(root, served.manifest_sha256, wanted)
        if parts is None:
            return None, wanted
        files, drafters = files or parts.files, drafters | parts.drafters
    return Sources(served, files, drafters), wanted


def find_local_sources(settings: ClientSettings, progress: Progress) -> Sources | None:
    """What is on this device: for the last server at this address or --model, else the companion; None: nothing."""
    served = _recall(settings)
    if settings.model:
        files = resolve(settings.model, settings.cache_dir, progress)
        if served is None or files.fingerprint != served.identity.target_fingerprint.hex():
            served = _describe_files(files)
    companion = None
    if settings.companion == AUTO and served is not None:
        companion = find_offered(settings, served.companion)
    found = find_present(settings, served, progress)[0] if served is not None else None
    if companion is None and settings.companion in ("", AUTO):
        return found
    if found is None and served is not None:  # the target's tokenizer is enough for a companion
        found = find_present(replace(settings, drafter=NONE), served, progress)[0]
    return replace(found, companion=companion) if found is not None else stand_in(settings, companion, progress)


def find_last_target(settings: ClientSettings, progress: Progress) -> ModelFiles | None:
    """What is here of the model of the last server at this address; None: nothing, or there was none."""
    served = _recall(settings)
    found = find_present(replace(settings, drafter=NONE), served, progress)[0] if served is not None else None
    return found.files if found is not None else None


def possible_companion(settings: ClientSettings, served: pb.DescribeResponse | None, target: ModelFiles) -> str:
    """A companion for a target, as `moa-client companion set` takes it; empty: none is known."""
    if served is not None and served.HasField("companion"):
        return AUTO
    root = cache.cache_root(settings.cache_dir)
    if is_ready(entry_of(DEFAULT_MODEL.gguf_sha256, root)) and find_installed(DEFAULT_MODEL) is not None:
        default = resolve_packaged("default", DEFAULT_MODEL, root, QUIET)
        if default.tokenizer_hash == target.tokenizer_hash:
            return DEFAULT
    return next(iter(fitting_companions(target.config)), "")


def stand_in(settings: ClientSettings, offered: ModelFiles | None, progress: Progress) -> Sources:
    """The companion, `offered` or as --companion names it, by itself, until a server says what its target is."""
    files = offered or find_companion(settings.companion, settings.cache_dir, progress)
    return Sources(_describe_files(files), files, {}, companion=files, stands_in=True)


def resolve_sources(settings: ClientSettings, served: pb.DescribeResponse, progress: Progress) -> Sources:
    """Sources without files from the server: --model as named, and the installed drafters."""
    files = resolve(settings.model or DEFAULT, settings.cache_dir, progress)
    return Sources(served, files, _installed(settings, served))


def named_drafter(settings: ClientSettings, files: ModelFiles, progress: Progress) -> Path:
    """The file that --drafter names: one that comes with moa by its name, or as of `find_drafter`."""
    if settings.drafter in checkpoint.SHIPPED_DRAFTERS:
        hint = "Leave --drafter out: then it is the server's."
        return checkpoint.require_shipped(files.fingerprint, files.target_id, settings.drafter, hint=hint)
    return find_drafter(settings.drafter, files, settings.cache_dir, progress)


def _find_target(settings: ClientSettings, served: pb.DescribeResponse, progress: Progress) -> ModelFiles | None:
    """The whole model, as --model names it or where it is in the cache; None: it is not here."""
    if settings.model:
        return resolve(settings.model, settings.cache_dir, progress)
    root = cache.cache_root(settings.cache_dir)
    for manifest in sorted((root / "models").glob(f"*-v{cache.FORMAT}/{cache.MANIFEST}")):
        with suppress(MoaError):  # damaged or of another kind: not needed
            files = describe_entry(manifest.parent, root)
            if files.fingerprint == served.identity.target_fingerprint.hex():
                return files
    return None


def _installed(settings: ClientSettings, served: pb.DescribeResponse) -> dict[bytes, Path]:
    """The installed drafters among those that --drafter means, by fingerprint."""
    root, target = cache.cache_root(settings.cache_dir), served.identity.target_fingerprint.hex()
    meant = {each.fingerprint for each in meant_drafters(settings, served)}
    paths = checkpoint.installed_drafters(target).values() if meant else ()
    installed = {bytes.fromhex(cache.remembered_hash(path, root)): path for path in paths}
    return {fingerprint: path for fingerprint, path in installed.items() if fingerprint in meant}


def identity_of(files: ModelFiles) -> pb.Identity:
    fingerprint, tokenizer_hash = bytes.fromhex(files.fingerprint), bytes.fromhex(files.tokenizer_hash)
    return pb.Identity(target_id=files.target_id, target_fingerprint=fingerprint, tokenizer_hash=tokenizer_hash)


def _describe_files(files: ModelFiles) -> pb.DescribeResponse:
    """What a server of this model without drafters would describe."""
    return pb.DescribeResponse(protocol_version=PROTOCOL_VERSION, identity=identity_of(files))


def _remember(settings: ClientSettings, served: pb.DescribeResponse) -> None:
    described = {"address": settings.server, "described": served.SerializeToString().hex()}
    cache.remember(cache.cache_root(settings.cache_dir), _key(settings.server), described)


def _recall(settings: ClientSettings) -> pb.DescribeResponse | None:
    known = cache.recall(cache.cache_root(settings.cache_dir), _key(settings.server))
    try:
        return pb.DescribeResponse.FromString(bytes.fromhex(str(known["described"])))
    except (KeyError, ValueError, DecodeError):
        return None


def _key(address: str) -> str:
    return "server-" + hashlib.sha256(address.encode()).hexdigest()[:32]


def offered_words(offered: pb.Companion) -> str:
    return f"{offered.name} ({si_bytes(offered.bytes)})" if offered.bytes else offered.name


def find_offered(settings: ClientSettings, offered: pb.Companion) -> ModelFiles | None:
    """The companion, if it is on this device; None: it must be fetched."""
    root, on_hub = cache.cache_root(settings.cache_dir), _on_hub(offered)
    folder, places = fetching.folder_of(root, offered.manifest_sha256), list[Callable[[], ModelFiles]]()
    if find_installed(DEFAULT_MODEL) is not None:  # the default model, which may have been installed with moa
        places.append(partial(resolve, DEFAULT, root, QUIET))
    if on_hub is not None and pulled(on_hub) is not None:
        places.append(partial(resolve, offered.hub, root, QUIET))
    if offered.manifest_sha256 and folder.is_dir():
        places.append(partial(_describe_companion, folder, offered, root))
    for find in places if offered.fingerprint else ():
        with suppress(MoaError):  # damaged or gone: then it is fetched again
            if (files := find()).fingerprint == offered.fingerprint.hex():
                return files
    return None


async def take_offered(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, progress: Progress
) -> ModelFiles:
    """The companion that a server offers; what is missing is fetched."""
    if not served.HasField("companion"):
        raise NotFoundError(f"The server of {served.identity.target_id} offers no companion.", hint=NAME_ONE)
    offered = served.companion
    if (files := await asyncio.to_thread(find_offered, settings, offered)) is not None:
        return files
    root = cache.cache_root(settings.cache_dir)
    if _on_hub(offered) is not None:
        progress.note(f"The companion {offered_words(offered)} comes from the hub.")
        try:
            resolving = partial(resolve, offered.hub, settings.cache_dir)
            return _accept(await run_reporting(resolving, progress, "companion"), offered)
        except MoaError as error:
            progress.note(f"{error.message} So it comes from the server.")
    server = fleet.shown.widened(fetching.WINDOW_BYTES)
    try:
        manifest, digest = await fetching.fetch_manifest(server, offered.manifest_sha256, companion=True)
        for entry in manifest.files:
            if entry.kind not in (pb.PART_TEXT, pb.PART_COMPANION):
                raise ProtocolError("files of a companion", f"{entry.name} of the kind {entry.kind}")
        folder, what, allowed = fetching.folder_of(root, digest), f"the companion {offered.name}", settings.fetch_bytes
        async with cache.locked_meanwhile(folder, progress, asyncio.sleep):
            await fetching.fetch_files(server, root, folder, manifest.files, progress, what, allowed, companion=True)
            return _accept(await asyncio.to_thread(_describe_companion, folder, offered, root), offered)
    finally:
        await server.close()


def _accept(files: ModelFiles, offered: pb.Companion) -> ModelFiles:
    if files.fingerprint != (expected := offered.fingerprint.hex()):
        raise MismatchError(f"companion {offered.name}", expected[:12], files.fingerprint[:12], hint=NAME_ONE)
    return files


def _on_hub(offered: pb.Companion) -> HubModel | None:
    """Where a server says that its companion is on the hub; no path of this device may be named so."""
    return HubModel.parse(offered.hub) if offered.hub.startswith(PREFIX) else None


def _describe_companion(folder: Path, offered: pb.Companion, root: Path) -> ModelFiles:
    """What was fetched; its files keep their names only once they are whole."""
    for gguf in sorted(folder.glob("model-*.gguf")):
        return adopt_gguf(gguf, root, QUIET, target_id=offered.name)
    return describe_folder(folder, offered.name, root)
