"""Takes on the target of the first server that a device meets whose companion has begun conversations by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.programs.progress import SilentProgress

from moa_client.device.loading import Device, load_device
from moa_client.device.sources import NONE, find_sources
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings


async def adopt(settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, device: Device) -> Device:
    """The device for the server's target, whose tokens are the companion's; the server's drafters come later (`refit`).

    Args:
        served: what the server describes.
        device: with nothing but the companion; stays usable meanwhile.
    """
    alone, progress = replace(settings, drafter=NONE), SilentProgress()
    sources = await find_sources(alone, fleet, served, progress)
    loaded = await asyncio.to_thread(load_device, alone, served, progress, sources, None, device.companion)
    return replace(loaded, is_refused=True)
