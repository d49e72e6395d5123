"""Examines one server, step by step: a step is skipped if one that it needs has failed.

State: what the steps so far have found. Every step has a deadline, and says what it waits for. Those about this device
say which drafters are here, which companion there is or could be, and how fast they are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.companion import find_companion, fitting_companions, load_companion
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.models import load_tokenizer
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.machine import Check, check_fields, si_bytes
from moa_shared.programs.progress import Progress

from moa_client.device.companion_offer import find_offered, offered_words
from moa_client.device.drafter_catalog import DrafterCandidate, DrafterCatalog, ServerPace, level_ms
from moa_client.device.fetching import bytes_of
from moa_client.device.sources import AUTO, NONE, Sources, find_present, means_served, meant_drafters
from moa_client.doctor.steps import (
    GOODPUT_SECONDS,
    ROUND_TRIPS,
    check_connection,
    check_name,
    check_tls,
    judge_expectation,
    judge_speed,
    measure_download,
    measure_round_trip,
    measure_upload,
)
from moa_client.link.server import Server
from moa_client.settings import ClientSettings

TEXT_TOKENS = 1000  # of the text whose keys and values are told
WITHOUT_DRAFTER = (
    "Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. "
    "See docs/drafters.md, or try --drafter lookup."
)
_TAKE = "--companion auto fetches it, once: it writes here while no server answers."
_NAME_ONE = "With --companion ID it writes here while no server answers (docs/drafters.md#a-companion)."


def find_drafters(
    settings: ClientSettings, served: pb.DescribeResponse, manifest: pb.PartManifest | None, progress: Progress
) -> tuple[Sources | None, Check]:
    if not means_served(settings) and not meant_drafters(settings, served):
        return None, Check("drafter", "ok", f"{settings.drafter}, as wished")
    names = ", ".join(each.name for each in meant_drafters(settings, served))
    if not names:
        return None, Check("drafter", "warn", "the server has none for its model", WITHOUT_DRAFTER)
    present, wanted = find_present(settings, served, progress)
    if present is not None:
        return present, Check("drafter", "ok", f"here: {names}")
    size = bytes_of(manifest, wanted) if manifest is not None else 0
    what = si_bytes(size) if size else "it"
    return None, Check("drafter", "warn", f"not here yet: {names}", f"The first chat fetches {what} from the server.")


def examine_companion(
    settings: ClientSettings, served: pb.DescribeResponse, sources: Sources | None, progress: Progress
) -> Check:
    """The companion: whether it has the vocabulary of the server's model, and what it takes; else which there could be.

    `sources`: the device's half for this server; None: nothing is here.
    """
    if settings.companion == AUTO:
        files = find_offered(settings, served.companion)
    else:
        files = find_companion(settings.companion, settings.cache_dir, progress) if settings.companion else None
    if files is None:
        return _possible_companion(settings, served, sources)
    present, _ = find_present(replace(settings, drafter=NONE), served, progress)
    target = present.files if present is not None else files
    companion = load_companion(files, target, settings.cache_dir, progress, weights=settings.dtype)
    text = companion.new_cache().most_nbytes(TEXT_TOKENS)
    breadth = 1 if settings.mode == "chain" else settings.breadth
    took = level_ms(cache_root(settings.cache_dir), companion.fingerprint, breadth, companion.new_state)
    sizes = f"{si_bytes(companion.weights_bytes)} of weights, {si_bytes(text)} for a text of {TEXT_TOKENS} tokens"
    message = f"{companion.name}: {sizes}; a level of a draft takes {took:.1f} ms"
    if present is None:
        hint = "Its vocabulary is compared when the first chat has fetched the server's tokenizer."
        return Check("companion", "warn", message, hint)
    if companion.tokenizer.chat_template != load_tokenizer(target).chat_template:
        message += "; its chat template is another one: it reads conversations in the server's"
    return Check("companion", "ok", message)


def _possible_companion(settings: ClientSettings, served: pb.DescribeResponse, sources: Sources | None) -> Check:
    name, target = "companion", served.identity.target_id
    if served.HasField("companion"):
        words = f"the server offers {offered_words(served.companion)}"
        if settings.companion:
            return Check(name, "warn", f"{words}, which is not here yet", "The first chat fetches it.")
        return Check(name, "ok", words, _TAKE)
    if settings.companion:
        return Check(name, "warn", "the server offers none", "Name one with --companion FILE.")
    if sources is None:
        return Check(name, "skip", f"none; nothing of {target} is here to look for one by")
    fitting = fitting_companions(sources.files.config)
    if not fitting:
        return Check(name, "ok", f"none, and none is known for {target}")
    return Check(name, "ok", f"none; {' or '.join(each.hub for each in fitting)} would fit {target}", _NAME_ONE)


def checks_json(checks: dict[str, Sequence[Check]]) -> str:
    """All steps of all servers, by the server's address."""
    servers = [{"server": server, "checks": list(map(check_fields, steps))} for server, steps in checks.items()]
    return json.dumps(servers, indent=2) + "\n"


NEEDED = ("name", "connection", "TLS", "server", "round trip")  # a failure of one ends the examination


class ServerExamination:
    """All steps for one server."""

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
        self._candidates: tuple[DrafterCandidate, ...] = ()

    async def run(self) -> AsyncIterator[Check]:
        server, seconds = self._server, self._settings.connect_seconds
        steps: list[tuple[str, float | None, Callable[[], Awaitable[Check]]]] = [
            ("name", seconds, lambda: check_name(server.address, server.security)),
            ("connection", seconds, lambda: check_connection(server.address, server.security)),
            ("TLS", seconds, lambda: check_tls(server.address, server.security)),
            ("server", seconds + 1, self._describe),
            ("round trip", ROUND_TRIPS * seconds, self._measure_round_trip),
            ("download", 2 * GOODPUT_SECONDS + 1, self._measure_download),
            ("upload", GOODPUT_SECONDS + 1, self._measure_upload),
            ("drafter", None, self._find_drafters),
            ("companion", None, self._examine_companion),
            ("speed here", None, self._measure_drafters),
            ("expect", None, self._expect),
        ]
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
            async with asyncio.timeout(limit):
                return await step()
        except TimeoutError:
            hint = "Check firewalls between this device and the server, and whether the network carries anything."
            return Check(name, "fail", f"nothing came within {limit:g} s", hint, UnavailableError.exit_code)
        except MoaError as error:
            return Check(name, "fail", error.message.rstrip("."), error.hint, error.exit_code)

    async def _describe(self) -> Check:
        served = self._served = await self._server.describe()
        level = served.execution.level or "an unnamed level"
        message = f"{served.identity.target_id} at {level}, moa {served.server_version}"
        return Check("server", "ok", f"{message}, protocol {served.protocol_version}")

    async def _measure_round_trip(self) -> Check:
        self._rtt_ms, check = await measure_round_trip(self._server)
        return check

    async def _measure_download(self) -> Check:
        self._manifest, check = await measure_download(self._server, self._served.step_ms)
        return check

    async def _measure_upload(self) -> Check:
        served = self._served
        return await measure_upload(self._server, served.limits.frame_bytes, self._rtt_ms, served.step_ms)

    async def _find_drafters(self) -> Check:
        self._sources, check = await asyncio.to_thread(
            find_drafters, self._settings, self._served, self._manifest, self._progress
        )
        return check

    async def _examine_companion(self) -> Check:
        return await asyncio.to_thread(examine_companion, self._settings, self._served, self._sources, self._progress)

    async def _measure_drafters(self) -> Check:
        settings, sources = self._settings, self._sources
        if sources is None:
            return Check("speed here", "skip", "not measured: no drafter is here")
        self._candidates = await asyncio.to_thread(lambda: DrafterCatalog(settings, sources).measure())
        return judge_speed(self._candidates, self._served.step_ms)

    async def _expect(self) -> Check:
        served = self._served
        if self._sources is None:
            return Check("expect", "skip", "not estimated: no drafter is here")
        return judge_expectation(self._candidates, ServerPace(served.step_ms, served.row_ms, self._rtt_ms))
