"""Alert rules and dashboard over a real Prometheus that scrapes a real server of the tiny target under load."""

import asyncio
import json
import math
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import yaml

from tests.net.server_peer import GREEDY, PROMPT, Peer, generate, tiny_target
from tests.net.test_server_observed import observed
from tests.support.certificates import Authority
from tests.support.programs import CHECKOUT, free_port, printed
from tests.support.skipping import cannot_run

DEPLOY = CHECKOUT / "deploy"
CONFIG, RULES, DASHBOARD = DEPLOY / "prometheus/prometheus.yml", DEPLOY / "prometheus/alerts.yml", "grafana/moa.json"
PATIENCE_SECONDS = 90.0
WINDOW = "10s"  # of rates: ten scrapes of the test


def program(name: str) -> str:
    found = shutil.which(name)
    return found or cannot_run(f"{name} is not installed (Debian: apt-get install prometheus)")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / DASHBOARD).read_text("utf-8"))
    return found


def dashboard_queries() -> list[tuple[str, str]]:
    """Panel and query, with Grafana's variables replaced."""
    return [
        (panel["title"], each["expr"].replace("$__rate_interval", WINDOW).replace("$instance", ".+"))
        for panel in dashboard()["panels"]
        for each in panel["targets"]
    ]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def anchor(heading: str) -> str:
    """As on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_configuration_and_rules_are_valid() -> None:
    for kind, path in (("config", CONFIG), ("rules", RULES)):
        printed(program("promtool"), "check", kind, path)


def test_each_alert_has_its_section_in_the_runbook() -> None:
    runbook = (CHECKOUT / "docs/runbook.md").read_text("utf-8")
    sections = [f"docs/runbook.md#{anchor(name)}" for name in re.findall(r"^## (.+)$", runbook, re.MULTILINE)]
    assert [rule["annotations"]["runbook"] for rule in alerts()] == sections


@asynccontextmanager
async def scraping(port: int, folder: Path) -> AsyncIterator[str]:
    """A Prometheus that scrapes a port each second with the checkout's configuration; its address."""
    text = CONFIG.read_text("utf-8").replace("server:9464", f"127.0.0.1:{port}").replace("15s", "1s")
    (folder / "prometheus.yml").write_text(text.replace("alerts.yml", str(RULES)))
    here = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={here}", "--log.level=error",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield f"http://{here}"
    finally:
        process.terminate()
        await process.wait()


def get(address: str, path: str, **parameters: str) -> list[Any]:
    """What Prometheus' API answers; nothing while it starts. AssertionError: a query that it does not accept."""
    try:
        answer = httpx.get(f"{address}/api/v1/{path}", params=parameters, timeout=20, trust_env=False)
    except httpx.TransportError:
        return []
    if answer.status_code == 503:
        return []
    assert answer.status_code == 200, f"{parameters}: {answer.text}"
    found: list[Any] = next(value for name, value in answer.json()["data"].items() if name in ("result", "groups"))
    return found


def has_data(address: str, query: str) -> bool:
    return any(math.isfinite(float(series["value"][1])) for series in get(address, "query", query=query))


@pytest.mark.timeout(240)
async def test_every_query_returns_data(tmp_path: Path) -> None:
    target, authority = tiny_target(), Authority()
    certificate, key = authority.issue().write(tmp_path)
    credentials = grpc.ssl_channel_credentials(authority.certificate)

    async def ask(channel: Any) -> None:
        while True:
            await generate(channel, PROMPT, GREEDY)
            peer = Peer(channel)
            await peer.open(run_ahead=True)
            await peer.ask(PROMPT, GREEDY)
            await peer.verdict()
            await peer.draft([1, 2])
            await peer.bye()

    async def missing(address: str) -> list[tuple[str, str]]:
        return [each for each in dashboard_queries() if not await asyncio.to_thread(has_data, address, each[1])]

    async with (
        observed(target, tls_cert=certificate, tls_key=key) as (running, observing),
        grpc.aio.secure_channel(f"localhost:{running.port}", credentials) as channel,
        scraping(observing.port, tmp_path) as address,
    ):
        load = asyncio.create_task(ask(channel))
        try:
            left = dashboard_queries()
            deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
            while left and asyncio.get_running_loop().time() < deadline and not load.done():
                await asyncio.sleep(1.0)  # a scrape
                left = await missing(address)
            if load.done():
                load.result()
            assert left == []
            groups = await asyncio.to_thread(get, address, "rules")
            rules = [rule for group in groups for rule in group["rules"]]
            assert [rule["name"] for rule in rules] == [rule["alert"] for rule in alerts()]
            assert [(rule["name"], rule.get("lastError", "")) for rule in rules if rule["health"] == "err"] == []
            for rule in alerts():  # both sides of each comparison have data, or nothing is ever compared
                await asyncio.to_thread(get, address, "query", query=rule["expr"])
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
