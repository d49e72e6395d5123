"""Where a device's half comes from: the cache, what is installed, or the server itself.

A server's description is stored by its address, so that the device can continue when the server is unavailable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.message import DecodeError
from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.checkpoint.shipped import (
    DEFAULT_DRAFTER,
    SHIPPED_DRAFTERS,
    TOKENS_A_FORWARD,
    installed_drafters,
    require_shipped_drafter,
)
from moa_shared.drafter.companion import find_companion, fitting_companions
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import MoaError
from moa_shared.models import DEFAULT, ModelFiles, resolve
from moa_shared.models.gguf.entry import describe_entry, entry_of, is_ready
from moa_shared.models.sources.cache import FORMAT, MANIFEST, cache_root, recall, remember, remembered_hash
from moa_shared.models.sources.packaged import DEFAULT_MODEL, find_installed, resolve_packaged
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION

from moa_client.device.companion_offer import find_offered
from moa_client.device.fetching import WantedParts, fetch, find_fetched
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings

NONE = "none"  # --drafter: nobody drafts here
FILELESS = ("lookup", NONE)  # --drafter: what no file is read for
AUTO = "auto"  # --drafter: the fastest here of those that the server gives memory for


@dataclass(frozen=True, slots=True)
class Sources:
    """Files for a device.

    Args:
        served: what the server describes, or described when last available.
        drafters: checkpoints that --drafter means, by fingerprint; none: there are none for this target.
        companion: if it is known yet: the one that the server offers, if --companion means that one and it is here.
        stands_in: nothing of a target is here: the files are those of the companion, which speaks for itself.
    """

    served: pb.DescribeResponse
    files: ModelFiles
    drafters: dict[bytes, Path]
    companion: ModelFiles | None = None
    stands_in: bool = False


def meant_drafters(settings: ClientSettings, served: pb.DescribeResponse) -> list[pb.Drafter]:
    """The server's drafters that --drafter means: all, the first, or the one named; none if it means another one."""
    offered = list(served.drafters)
    if not offered and served.identity.drafter_fingerprint:
        offered = [pb.Drafter(name=DEFAULT_DRAFTER, fingerprint=served.identity.drafter_fingerprint)]
    if settings.drafter == AUTO:
        return offered
    if settings.drafter == DEFAULT_DRAFTER:
        return offered[:1]
    if settings.drafter in SHIPPED_DRAFTERS:
        return [each for each in offered if each.name == settings.drafter]
    return []  # a path names a file of this device


def means_served(settings: ClientSettings) -> bool:
    """Whether --drafter leaves the choice to the server or to this device."""
    return settings.drafter in (AUTO, DEFAULT_DRAFTER)


async def find_sources(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, progress: Progress
) -> Sources:
    """Everything for this server's target; what is missing is fetched from it."""
    root = cache_root(settings.cache_dir)
    _remember(root, settings.server, served)
    identity = served.identity
    files = _named(settings, progress) or _find_whole(root, identity.target_fingerprint.hex())
    drafters = _shipped(settings, served)
    wanted = _wanted(settings, served, have_files=files is not None, have=drafters)
    if files is None or wanted.drafters:
        digest = served.manifest_sha256
        parts = find_fetched(root, digest, wanted) or await fetch(
            fleet, root, wanted, progress, digest, settings.fetch_bytes
        )
        if parts.manifest_sha256 != digest:  # the server had not reported it yet
            served.manifest_sha256 = parts.manifest_sha256
            _remember(root, settings.server, served)
        files = files or parts.files
        drafters |= parts.drafters
    return Sources(served, files, drafters)


def find_local_sources(settings: ClientSettings, progress: Progress) -> Sources | None:
    """What is on this device: for the last server at this address, else the companion, or what there is for the default
    target; None: nothing.
    """
    root = cache_root(settings.cache_dir)
    served = _recall(root, settings.server)
    files = _named(settings, progress)
    companion = None
    if settings.companion == AUTO and served is not None:
        companion = find_offered(settings, served.companion)
    if companion is not None or settings.companion not in ("", AUTO):
        found = None
        if served is not None or files is not None:
            found = _find_local(settings, served, files, progress) or _find_local(
                replace(settings, drafter=NONE), served, files, progress
            )
        return replace(found, companion=companion) if found is not None else stand_in(settings, companion, progress)
    return _find_local(settings, served, files, progress)


def find_last_target(settings: ClientSettings, progress: Progress) -> ModelFiles | None:
    """What is here of the model of the last server at this address; None: nothing, or there was none."""
    served = _recall(cache_root(settings.cache_dir), settings.server)
    if served is None:
        return None
    found, _ = _find_present(replace(settings, drafter=NONE), served, _named(settings, progress))
    return found.files if found is not None else None


def possible_companion(settings: ClientSettings, served: pb.DescribeResponse | None, target: ModelFiles) -> str:
    """A companion for a target, as `moa-client companion set` takes it; empty: none is known.

    `served`: what its server describes; None: it is not there.
    """
    if served is not None and served.HasField("companion"):
        return AUTO
    default = _find_default(cache_root(settings.cache_dir))
    if default is not None and default.tokenizer_hash == target.tokenizer_hash:
        return DEFAULT
    return next((each.hub for each in fitting_companions(target.config)), "")


def _find_local(
    settings: ClientSettings, served: pb.DescribeResponse | None, files: ModelFiles | None, progress: Progress
) -> Sources | None:
    root = cache_root(settings.cache_dir)
    if served is None or (files is not None and files.fingerprint != served.identity.target_fingerprint.hex()):
        files = files or _find_default(root)
        served = _describe_standalone(settings, files, root, progress) if files is not None else None
    if served is None:
        return None
    return _find_present(settings, served, files)[0]


def stand_in(settings: ClientSettings, offered: ModelFiles | None, progress: Progress) -> Sources:
    """The companion by itself: until a server says what its target is, the conversation is with this model.

    `offered`: by a server, and here; None: the one that --companion names.
    """
    files = offered or find_companion(settings.companion, settings.cache_dir, progress)
    return Sources(_describe_files(files), files, {}, companion=files, stands_in=True)


def find_present(
    settings: ClientSettings, served: pb.DescribeResponse, progress: Progress
) -> tuple[Sources | None, WantedParts]:
    """What is here for this server; None if something must be fetched. And what is not installed."""
    return _find_present(settings, served, _named(settings, progress))


def _find_present(
    settings: ClientSettings, served: pb.DescribeResponse, files: ModelFiles | None
) -> tuple[Sources | None, WantedParts]:
    root = cache_root(settings.cache_dir)
    files = files or _find_whole(root, served.identity.target_fingerprint.hex())
    drafters = _shipped(settings, served)
    wanted = _wanted(settings, served, have_files=files is not None, have=drafters)
    if files is None or wanted.drafters:
        parts = find_fetched(root, served.manifest_sha256, wanted)
        if parts is None:
            return None, wanted
        files = files or parts.files
        drafters |= parts.drafters
    return Sources(served, files, drafters), wanted


def resolve_sources(settings: ClientSettings, served: pb.DescribeResponse, progress: Progress) -> Sources:
    """Sources without files from the server: --model as named, and the installed drafters."""
    files = resolve(settings.model or DEFAULT, settings.cache_dir, progress)
    return Sources(served, files, _shipped(settings, served))


def named_drafter(settings: ClientSettings, files: ModelFiles, progress: Progress) -> Path:
    """The file that --drafter names: one that comes with moa by its name, or as of `find_drafter`."""
    if settings.drafter in SHIPPED_DRAFTERS:
        hint = "Leave --drafter out: then it is the server's."
        return require_shipped_drafter(files.fingerprint, files.target_id, settings.drafter, hint=hint)
    return find_drafter(settings.drafter, files, settings.cache_dir, progress)


def _named(settings: ClientSettings, progress: Progress) -> ModelFiles | None:
    return resolve(settings.model, settings.cache_dir, progress) if settings.model else None


def _shipped(settings: ClientSettings, served: pb.DescribeResponse) -> dict[bytes, Path]:
    """The installed drafters among those that --drafter means, by fingerprint."""
    meant = {each.fingerprint for each in meant_drafters(settings, served)}
    if not meant:
        return {}
    root, target = cache_root(settings.cache_dir), served.identity.target_fingerprint.hex()
    installed = {bytes.fromhex(remembered_hash(path, root)): path for path in installed_drafters(target).values()}
    return {fingerprint: path for fingerprint, path in installed.items() if fingerprint in meant}


def _wanted(
    settings: ClientSettings, served: pb.DescribeResponse, *, have_files: bool, have: dict[bytes, Path]
) -> WantedParts:
    meant = {each.fingerprint for each in meant_drafters(settings, served)}
    drafts_itself = bool(meant) if means_served(settings) else settings.drafter not in ("lookup", "none")
    return WantedParts(
        target=drafts_itself and not have_files, drafters=frozenset(meant - have.keys()), precision=settings.parts
    )


def _find_whole(root: Path, fingerprint: str) -> ModelFiles | None:
    for manifest in sorted((root / "models").glob(f"*-v{FORMAT}/{MANIFEST}")):
        try:
            files = describe_entry(manifest.parent, root)
        except MoaError:
            continue  # damaged or of another kind: not needed
        if files.fingerprint == fingerprint:
            return files
    return None


def _find_default(root: Path) -> ModelFiles | None:
    entry = entry_of(DEFAULT_MODEL.gguf_sha256, root)
    if not is_ready(entry) or find_installed(DEFAULT_MODEL) is None:
        return None
    return resolve_packaged("default", DEFAULT_MODEL, root, SilentProgress())


def _describe_standalone(
    settings: ClientSettings, files: ModelFiles, root: Path, progress: Progress
) -> pb.DescribeResponse:
    """What a server of this target with this device's drafters would describe."""
    paths = installed_drafters(files.fingerprint)
    if not means_served(settings) and settings.drafter not in FILELESS:
        paths = {settings.drafter: named_drafter(settings, files, progress)}
    drafters = [
        pb.Drafter(
            name=name,
            fingerprint=bytes.fromhex(remembered_hash(path, root)),
            tokens_a_forward=TOKENS_A_FORWARD.get(name, 0.0),
        )
        for name, path in paths.items()
    ]
    return _describe_files(files, drafters)


def _describe_files(files: ModelFiles, drafters: Sequence[pb.Drafter] = ()) -> pb.DescribeResponse:
    return pb.DescribeResponse(
        protocol_version=PROTOCOL_VERSION,
        identity=pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
            drafter_fingerprint=drafters[0].fingerprint if drafters else b"",
        ),
        drafters=drafters,
    )


def _remember(root: Path, address: str, served: pb.DescribeResponse) -> None:
    remember(root, _key(address), {"address": address, "described": served.SerializeToString().hex()})


def _recall(root: Path, address: str) -> pb.DescribeResponse | None:
    try:
        return pb.DescribeResponse.FromString(bytes.fromhex(str(recall(root, _key(address))["described"])))
    except (KeyError, ValueError, DecodeError):
        return None


def _key(address: str) -> str:
    return "server-" + hashlib.sha256(address.encode()).hexdigest()[:32]
