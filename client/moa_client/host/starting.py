"""Connects to the server and loads this device's half; without a server, what this device has."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError, NotFoundError, UnavailableError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.files import RAW_TEXT_ONLY
from moa_shared.programs.progress import Progress
from moa_shared.programs.run_loop import run_reporting

from moa_client.device.kept_companion import read_kept
from moa_client.device.loading import Device, load_device, trim_heap
from moa_client.device.sources import (
    AUTO,
    Sources,
    find_local_sources,
    find_sources,
    means_served,
    possible_companion,
    stand_in,
    take_offered,
)
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reached:
    """What the first call to the server has found.

    Args:
        served: what the server describes; None: it is absent.
        rtt_ms: to the server; None: the same.
        absent: why; None: it is there, or the user wants no server.
    """

    served: pb.DescribeResponse | None = None
    rtt_ms: float | None = None
    absent: UnavailableError | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """This device is ready for questions."""

    device: Device
    reached: Reached
    sources: Sources
    offer: str = ""  # a companion that would fit, as `moa-client companion set` takes it; empty: none, or there is one


async def reach(settings: ClientSettings, fleet: Fleet) -> Reached:
    """Asks the server what it serves, unless the user wants none."""
    if settings.offline:
        return Reached()
    try:
        served = await fleet.describe()
    except UnavailableError as error:
        return Reached(absent=error)
    for left_out in fleet.skipped:
        log.warning(left_out)
    return Reached(served, fleet.shown.rtt_ms)


async def find(settings: ClientSettings, fleet: Fleet, reached: Reached, progress: Progress) -> Sources:
    """The files of this device's half; what is missing is fetched."""
    if reached.served is not None:
        if reached.served.raw_text_only:  # programs may ask for that
            log.warning("%s has no chat template: %s.", reached.served.identity.target_id, RAW_TEXT_ONLY)
        sources = await find_sources(settings, fleet, reached.served, progress)
        if settings.companion == AUTO:
            return replace(sources, companion=await _take_companion(settings, fleet, reached.served, progress))
        return sources
    return await run_reporting(partial(_find_standalone, settings, reached.absent), progress, "files")


async def _take_companion(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, progress: Progress
) -> ModelFiles | None:
    """The companion that the server offers; None: there is none, which is said, and the conversation does without."""
    try:
        return await take_offered(settings, fleet, served, progress)
    except MoaError as error:
        said = f"{error} So there is no companion."
        progress.note(said)
        log.warning("%s", said)  # of a daemon, which shows no progress
        return None


def load(settings: ClientSettings, reached: Reached, sources: Sources, progress: Progress) -> Started:
    try:
        device = load_device(settings, sources.served, progress, sources, reached.rtt_ms)
    except MoaError as error:
        is_named = settings.companion not in ("", AUTO)
        if not isinstance(error, MismatchError) or not settings.offline or settings.model or not is_named:
            if not is_named or settings.companion != read_kept():
                raise
            said = f"{error} So there is no companion."  # the one that is kept was chosen for another model, or is gone
            progress.note(said)
            log.warning("%s", said)
            return load(replace(settings, companion=""), reached, sources, progress)
        sources = stand_in(settings, None, progress)  # who wants no server may talk to any model
        progress.note(f"{error.message} This chat is with {sources.files.target_id} alone.")
        device = load_device(settings, sources.served, progress, sources, None)
    device.target.tokenizer.prepare()
    trim_heap()
    offer = possible_companion(settings, reached.served, sources.files) if device.companion is None else ""
    return Started(device, reached, sources, offer)


def _find_standalone(settings: ClientSettings, absent: UnavailableError | None, progress: Progress) -> Sources:
    writes = settings.companion or settings.drafter not in ("lookup", "none")
    sources = find_local_sources(settings, progress) if writes else None
    is_named = settings.companion not in ("", AUTO)
    if sources is not None and (sources.drafters or sources.companion or is_named or not means_served(settings)):
        return sources
    raise absent or NotFoundError(
        "There is no drafter on this device to write with.", hint="Connect to a server once to fetch one."
    )
