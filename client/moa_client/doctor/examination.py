"""Examines one server, step by step: a step is skipped if one that it needs has failed.

State: what the steps so far have found. Every step has a deadline, and says what it waits for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs.machine import Check, check_fields
from moa_shared.programs.progress import Progress

from moa_client.device.drafter_catalog import DrafterCandidate, ServerPace
from moa_client.device.sources import Sources
from moa_client.doctor.drafting import examine_companion, find_drafters, measure_drafters
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

    # ------------------------------------------------------------ the server

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

    # ------------------------------------------------------------ this device

    async def _find_drafters(self) -> Check:
        self._sources, check = await asyncio.to_thread(
            find_drafters, self._settings, self._served, self._manifest, self._progress
        )
        return check

    async def _examine_companion(self) -> Check:
        return await asyncio.to_thread(examine_companion, self._settings, self._served, self._sources, self._progress)

    async def _measure_drafters(self) -> Check:
        if self._sources is None:
            return Check("speed here", "skip", "not measured: no drafter is here")
        self._candidates = await asyncio.to_thread(measure_drafters, self._settings, self._sources)
        return judge_speed(self._candidates, self._served.step_ms)

    async def _expect(self) -> Check:
        served = self._served
        if self._sources is None:
            return Check("expect", "skip", "not estimated: no drafter is here")
        return judge_expectation(self._candidates, ServerPace(served.step_ms, served.row_ms, self._rtt_ms))
