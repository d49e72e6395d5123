"""Examines one server, step by step: whether it answers, over which link, and who would draft for it on this device.

State: what the steps so far have found. Every step has a deadline, and says what it waits for; one that needs a step
that failed is skipped.
"""

import ssl
import time
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from statistics import median

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.companion import find_companion, load_companion
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback
from moa_shared.programs.machine import Check, si_bytes
from moa_shared.programs.progress import Progress
from moa_shared.programs.run_loop import turns
from moa_shared.protocol.handshake_checks import TlsReason

from moa_client.device import drafter_catalog as catalog
from moa_client.device.fetching import WINDOW_BYTES, fetch_manifest
from moa_client.device.sources import (
    AUTO,
    NONE,
    Sources,
    find_offered,
    find_present,
    means_served,
    meant_drafters,
    offered_words,
)
from moa_client.link.security import Security, shake_hands
from moa_client.link.server import Server
from moa_client.settings import ClientSettings

ROUND_TRIPS = 7
GOODPUT_BYTES = 400_000  # beyond TCP's slow start at most round trips, and 3 s at 1 Mbit/s
GOODPUT_SECONDS = 8.0  # then what has arrived counts
DOWN_BYTES = 550.0  # a token, with memory for both planes in int4 (docs/architecture.md)
SOON_DAYS = 14  # a certificate that ends within so many should be renewed now
FAR_MS = 150.0  # a round trip that a reader notices at each correction
FULL = 0.9  # beyond it, a server may refuse
NOTICEABLE = 1.05  # times plain streaming
TEXT_TOKENS = 1000  # of the text whose keys and values are told
NEEDED = ("server", "round trip")  # a failure of one ends the examination
WITHOUT_DRAFTER = (
    "Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. "
    "See docs/drafters.md, or try --drafter lookup."
)
_TAKE = "--companion auto fetches it, once: it writes here while no server answers."


async def check_tls(address: str, security: Security) -> Check:
    if not security.tls:
        if is_loopback(host_of(address)):
            return Check("TLS", "ok", "not used: nothing leaves this machine")
        return Check(
            "TLS", "warn", "not used: others on the way can read the conversation", "Use TLS where the server has it."
        )
    if (proxy := security.proxy(address)) is not None:
        return Check("TLS", "ok", f"set up by way of the {proxy}")
    try:
        certificate = await shake_hands(address, security)
    except OSError as error:
        raise UnavailableError(f"A second connection was not made: {error.strerror or error}.") from None
    if isinstance(certificate, TlsReason):
        raise UnavailableError(f"The server cannot be used: {certificate.why}.", hint=certificate.hint)
    owner = next((value for part in certificate.get("subject", ()) for _, value in part), "the server")
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    message = f"the certificate of {owner} is valid for {days:.0f} more day{'' if round(days) == 1 else 's'}"
    hint = "Whoever runs the server should renew it." if days < SOON_DAYS else ""
    return Check("TLS", "warn" if hint else "ok", message, hint)


def judge_round_trip(took_ms: float, load: float) -> Check:
    """The median of some calls, and how much of the server is taken."""
    message = f"{took_ms:.1f} ms, the median of {ROUND_TRIPS}; {100 * load:.0f} % of the server is taken"
    if load >= FULL:
        return Check("round trip", "warn", message, "It may refuse: ask later, or add another server.")
    if took_ms > FAR_MS:
        return Check("round trip", "warn", message, "Text comes as fast, but begins later: use a nearer server.")
    return Check("round trip", "ok", message)


def judge_download(nbytes: int, seconds: float, step_ms: float) -> Check:
    """Bytes that came in a time, against what the server's text takes. `step_ms`: of a plain step; 0: not known."""
    rate = nbytes / max(seconds, 1e-6)
    message = f"{si_bytes(rate)}/s ({si_bytes(nbytes)} in {seconds:.2g} s)"
    if not step_ms:
        return Check("download", "ok", message)
    needed = DOWN_BYTES * 1e3 / step_ms
    message += f"; text with drafts takes up to {si_bytes(needed)}/s"
    if rate >= needed:
        return Check("download", "ok", message)
    less = "The memory sent adapts, and fewer drafts are made: the text is the same, and comes more slowly."
    return Check("download", "warn", message, less)


def judge_drafts(candidates: Sequence[catalog.DrafterCandidate], server: catalog.ServerPace) -> Check:
    """How long a level of a draft takes here, against a step of the server, and what that gives."""
    levels = ", ".join(f"{each.level_ms:.1f} ms ({each.name})" for each in candidates)
    message, step_ms = f"a level of a draft takes {levels}", server.step_ms
    if not step_ms:
        return Check("drafts", "ok", f"{message}; the server does not say how long a step takes")
    message += f"; a plain step of the server {step_ms:.1f} ms, {1e3 / step_ms:.0f} tokens/s"
    if min(each.level_ms for each in candidates) >= step_ms:
        return Check("drafts", "warn", message, "Drafts from here come too late: give the drafter more --threads.")
    best = max(candidates, key=lambda each: catalog.speedup(each, server))
    if (times := catalog.speedup(best, server)) < NOTICEABLE:
        return Check("drafts", "ok", f"{message}: drafts from here add little, and the server drafts while it has time")
    return Check("drafts", "ok", f"{message}: about {times:.1f} times that with drafts from here ({best.name})")


def find_drafters(
    settings: ClientSettings, served: pb.DescribeResponse, manifest: pb.PartManifest | None, progress: Progress
) -> tuple[Sources | None, Check]:
    meant = meant_drafters(settings, served)
    if not means_served(settings) and not meant:
        return None, Check("drafter", "ok", f"{settings.drafter}, as wished")
    names = ", ".join(each.name for each in meant)
    if not names:
        return None, Check("drafter", "warn", "the server has none for its model", WITHOUT_DRAFTER)
    present, wanted = find_present(settings, served, progress)
    if present is not None:
        return present, Check("drafter", "ok", f"here: {names}")
    what = si_bytes(sum(entry.size for entry in wanted.of(manifest))) if manifest is not None else "it"
    return None, Check("drafter", "warn", f"not here yet: {names}", f"The first chat fetches {what} from the server.")


def examine_companion(settings: ClientSettings, served: pb.DescribeResponse, progress: Progress) -> Check:
    """The companion: whether it has the vocabulary of the server's model, and what it takes."""
    if settings.companion == AUTO:
        files = find_offered(settings, served.companion)
    else:
        files = find_companion(settings.companion, settings.cache_dir, progress) if settings.companion else None
    if files is None and served.HasField("companion"):
        words = f"the server offers {offered_words(served.companion)}"
        if settings.companion:
            return Check("companion", "warn", f"{words}, which is not here yet", "The first chat fetches it.")
        return Check("companion", "ok", words, _TAKE)
    if files is None and settings.companion:
        return Check("companion", "warn", "the server offers none", "Name one with --companion FILE.")
    if files is None:
        return Check("companion", "ok", "none (docs/drafters.md#a-companion)")
    present, _ = find_present(replace(settings, drafter=NONE), served, progress)
    target = present.files if present is not None else files
    companion = load_companion(files, target, settings.cache_dir, progress, weights=settings.dtype)
    text, took = companion.new_cache().most_nbytes(TEXT_TOKENS), catalog.companion_level_ms(settings, companion)
    sizes = f"{si_bytes(companion.weights_bytes)} of weights, {si_bytes(text)} for a text of {TEXT_TOKENS} tokens"
    message = f"{companion.name}: {sizes}; a level of a draft takes {took:.1f} ms"
    if present is None:
        return Check("companion", "warn", message, "Its vocabulary is compared when the first chat has the server's.")
    return Check("companion", "ok", message)


class ServerExamination:
    """All steps for one server. `waiting`: is told what is waited for."""

    def __init__(
        self, settings: ClientSettings, server: Server, progress: Progress, waiting: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._server = server
        self._progress = progress
        self._waiting = waiting
        self._served = pb.DescribeResponse()
        self._rtt_ms = 0.0
        self._manifest: pb.PartManifest | None = None
        self._sources: Sources | None = None

    async def run(self) -> AsyncIterator[Check]:
        server, seconds = self._server, self._settings.connect_seconds
        steps: tuple[tuple[str, float | None, Callable[[], Awaitable[Check]]], ...] = (
            ("server", seconds + 1, self._describe),
            ("TLS", seconds, lambda: check_tls(server.address, server.security)),
            ("round trip", ROUND_TRIPS * seconds, self._measure_round_trip),
            ("download", 2 * GOODPUT_SECONDS + 1, self._measure_download),
            ("drafter", None, self._find_drafters),
            ("companion", None, lambda: to_thread(examine_companion, self._settings, self._served, self._progress)),
            ("drafts", None, self._measure_drafts),
        )
        failed = ""
        for name, limit, step in steps:
            if failed:
                yield Check(name, "skip", f"not tried: {failed} failed")
                continue
            check = await self._take(name, limit, step)
            if check.state == "fail" and name in NEEDED:
                failed = name
            yield check

    async def _take(self, name: str, limit: float | None, step: Callable[[], Awaitable[Check]]) -> Check:
        self._waiting(f"{name} of {self._server.label} ...")
        try:
            async with turns(limit):
                return await step()
        except TimeoutError:
            hint = "Check firewalls between this device and the server, and whether the network carries anything."
            return Check(name, "fail", f"nothing came within {limit:g} s", hint, UnavailableError.exit_code)
        except MoaError as error:
            return Check(name, "fail", error.message.rstrip("."), error.hint, error.exit_code)

    async def _describe(self) -> Check:
        served = self._served = await self._server.describe()
        level = served.execution.level or "an unnamed level"
        versions = f"moa {served.server_version}, protocol {served.protocol_version}"
        return Check("server", "ok", f"{served.identity.target_id} at {level}, {versions}")

    async def _measure_round_trip(self) -> Check:
        took, load = [], 0.0
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            load = (await self._server.describe()).load
            took.append(1e3 * (time.monotonic() - began))
        self._rtt_ms = median(took)
        return judge_round_trip(self._rtt_ms, load)

    async def _measure_download(self) -> Check:
        """The list of what can be fetched, and the time of a range of its longest file."""
        wide = self._server.widened(WINDOW_BYTES)
        came, began = 0, 0.0
        try:
            async with turns(GOODPUT_SECONDS):
                self._manifest, _ = await fetch_manifest(wide)
            longest = max(self._manifest.files, key=lambda each: each.size)
            start = max(0, longest.size - GOODPUT_BYTES)
            request = pb.FetchDrafterRequest(name=longest.name, offset=start, sha256=longest.sha256)
            began = time.monotonic()
            async with turns(GOODPUT_SECONDS):
                async for message in wide.fetch(request):
                    came += len(message.chunk.data)
        except TimeoutError:
            if not began:
                return Check("download", "skip", "not measured: the list of files did not come in time")
        except MoaError as error:
            if not began:
                return Check("download", "skip", f"not measured: {error.message}")
            return Check("download", "warn", f"broke off: {error.message}", "Check the link; a download resumes.")
        finally:
            await wide.close()
        return judge_download(came, time.monotonic() - began, self._served.step_ms)

    async def _find_drafters(self) -> Check:
        self._sources, check = await to_thread(
            find_drafters, self._settings, self._served, self._manifest, self._progress
        )
        return check

    async def _measure_drafts(self) -> Check:
        candidates: list[catalog.DrafterCandidate] = []
        if self._sources is not None:
            candidates = await to_thread(catalog.measure_drafters, self._settings, self._sources)
        if not candidates:
            return Check("drafts", "skip", "not measured: no drafter is here")
        served = self._served
        return judge_drafts(candidates, catalog.ServerPace(served.step_ms, served.row_ms, self._rtt_ms))
