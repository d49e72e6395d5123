"""A server of the tiny target that is observed."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moa_server.observing.metrics import Metrics
from moa_server.observing.observing import Observing
from moa_server.running.running_server import RunningServer
from moa_server.service.host import Host
from moa_server.verifier import Target

from tests.net.server_peer import make_host, serving


@asynccontextmanager
async def observed(target: Target, **settings: Any) -> AsyncIterator[tuple[RunningServer, Observing]]:
    """The server, and what operators see of it."""
    metrics = Metrics()
    async with observed_host(make_host(target, observer=metrics, **settings), metrics) as both:
        yield both


@asynccontextmanager
async def observed_host(host: Host, metrics: Metrics) -> AsyncIterator[tuple[RunningServer, Observing]]:
    """The same with any host, which tells `metrics` what happens."""
    observing = Observing(metrics, "127.0.0.1", 0, host.services.settings.hang_seconds)
    try:
        async with serving(host) as running:
            observing.follow(host, running.tls)
            yield running, observing
    finally:
        observing.stop()


async def page(observing: Observing, path: str) -> tuple[int, str]:
    """Status and text of a page."""
    return await asyncio.to_thread(_get, f"http://127.0.0.1:{observing.port}{path}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def values(observing: Observing) -> dict[str, float]:
    """All samples by name with labels, made now."""
    from prometheus_client.exposition import generate_latest

    text = (await asyncio.to_thread(generate_latest, observing.registry)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}
