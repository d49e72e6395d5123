"""This device for the first server that its companion meets, and for one that was replaced by another drafter's."""

from __future__ import annotations

import asyncio
import ctypes
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.models.sources.cache import cache_root, remembered_hash
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.handshake_checks import check_identity

from moa_client.device.loading import Device, equip, load_device
from moa_client.device.sources import NONE, find_sources, means_served, meant_drafters, named_drafter
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings


def trim_heap() -> None:
    """Returns freed memory to the system; does nothing where the C library cannot."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # not glibc
        return
    trim(0)


async def adopt(settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, device: Device) -> Device:
    """The device for the server's target, whose tokens are the companion's; the server's drafters come later (`refit`).

    `device`: with nothing but the companion; stays usable meanwhile.
    """
    alone, progress = replace(settings, drafter=NONE), SilentProgress()
    sources = await find_sources(alone, fleet, served, progress)
    loaded = await asyncio.to_thread(load_device, alone, served, progress, sources, None, device.companion)
    return loaded.with_drafting(is_refused=True)


async def refit(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, device: Device, rtt_ms: float
) -> Device | None:
    """The device with a drafter that the server has memory for, fetched if need be; None: --drafter means no such one.

    `device`: as it is; stays usable meanwhile.
    """
    check_identity(served.identity, device.refused().identity)
    if not _offers(settings, served, device):
        return None
    progress = SilentProgress()  # an answer may be on the screen
    sources = await find_sources(settings, fleet, served, progress)
    bare = replace(device.refused(), files=sources.files).with_drafting(drafter=None)
    fitted = await asyncio.to_thread(equip, bare, settings, sources, progress, rtt_ms)
    trim_heap()
    return fitted if fitted.identity.drafter_fingerprint else None


def _offers(settings: ClientSettings, served: pb.DescribeResponse, device: Device) -> bool:
    if means_served(settings) or meant_drafters(settings, served):
        return bool(meant_drafters(settings, served))
    named = named_drafter(settings, device.files, SilentProgress())
    fingerprint = remembered_hash(named, cache_root(settings.cache_dir))
    return bytes.fromhex(fingerprint) in [each.fingerprint for each in served.drafters]
