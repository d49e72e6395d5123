"""The steps that need moa's protocol: what is served, the round trip, and how much the link carries each way."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError
from moa_shared.programs.checks import Check

from moa_client.device.fetching import WINDOW_BYTES, fetch_manifest
from moa_client.doctor.judgements import judge_goodput, judge_round_trip
from moa_client.link.server import Server

ROUND_TRIPS = 7
GOODPUT_BYTES = 400_000  # each way: beyond TCP's slow start at most round trips, and 3 s at 1 Mbit/s
GOODPUT_SECONDS = 8.0  # then what has arrived counts
UNKNOWN_FIELD = 0x7A  # number 15, with a length: an end that does not know it passes over it
FRAME_OVERHEAD_BYTES = 64
MOST_CALLS = 64  # of a server with short frames: its allowance for one connection is no more than a burst


async def measure_round_trip(server: Server) -> tuple[float, Check]:
    """The median of some calls over an open connection, in ms."""
    took, load = [], 0.0
    for _ in range(ROUND_TRIPS):
        began = time.monotonic()
        load = (await server.describe()).load
        took.append(1e3 * (time.monotonic() - began))
    return median(took), judge_round_trip(median(took), len(took), load)


async def measure_download(server: Server, step_ms: float) -> tuple[pb.PartManifest | None, Check]:
    """The list of what can be fetched, and the time of a range of its longest file."""
    wide = server.widened(WINDOW_BYTES)
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            manifest = await fetch_manifest(wide)
    except (MoaError, TimeoutError) as error:
        await wide.close()
        why = error.message if isinstance(error, MoaError) else "the list of files did not come in time"
        return None, Check("download", "skip", f"not measured: {why}")
    longest = max(manifest.files, key=lambda each: each.size)
    request = pb.FetchDrafterRequest(
        name=longest.name, offset=max(0, longest.size - GOODPUT_BYTES), sha256=longest.sha256
    )
    came, began = 0, time.monotonic()
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            async for message in wide.fetch(request):
                came += len(message.chunk.data)
    except TimeoutError:
        pass
    except MoaError as error:
        return manifest, Check("download", "warn", f"broke off: {error.message}", "Check the link; a download resumes.")
    finally:
        await wide.close()
    return manifest, judge_goodput("download", came, time.monotonic() - began, step_ms)


async def measure_upload(server: Server, frame_bytes: int, rtt_ms: float, step_ms: float) -> Check:
    """The time of calls that carry more than they need, all at once.

    Args:
        frame_bytes: the longest message that the server takes.
    """
    each = min(frame_bytes - FRAME_OVERHEAD_BYTES, GOODPUT_BYTES)
    if each <= 0:
        return Check("upload", "skip", "not measured: the server does not say how long a message may be")
    calls = min(MOST_CALLS, -(-GOODPUT_BYTES // each))
    padding = _padding(each)
    began = time.monotonic()
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            await asyncio.gather(*(server.describe(GOODPUT_SECONDS, padding) for _ in range(calls)))
    except TimeoutError:
        rate = calls * each / GOODPUT_SECONDS
        return Check("upload", "warn", f"less than {rate / 1e3:.0f} kB/s", "Drafts will often come too late.")
    except MoaError as error:
        return Check("upload", "skip", f"not measured: {error.message}")
    seconds = max(1e-3, time.monotonic() - began - rtt_ms / 1e3)
    return judge_goodput("upload", calls * each, seconds, step_ms)


def _padding(nbytes: int) -> bytes:
    """A field that no version knows, of about so many bytes, as part of a message."""
    length, digits = nbytes, bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return bytes([UNKNOWN_FIELD, *digits]) + bytes(nbytes)
