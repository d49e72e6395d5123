"""Several servers of the tiny target, and what tests of a fleet ask of them."""

from typing import Any, Self

from moa_client.conversation.events import ServerChanged
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.server import Server
from moa_server.app import RunningServer, start
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import stepper
from tests.net.client_talk import Screen
from tests.net.server_peer import make_host
from tests.support.messages import steady

GREEDY = AnswerSettings(max_tokens=80, ignore_end_of_text=True)
SAMPLED = AnswerSettings(Sampling(0.7, seed=4), max_tokens=80, ignore_end_of_text=True)
# The servers wait for drafts: else the first would have the whole answer ready before it is lost.
WAITING = DraftingSettings(rounds=4, standalone=StandaloneRule(end_ms=60_000.0))


class Servers:
    """Servers of the tiny target, by name; all are stopped at the end."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.running: dict[str, RunningServer] = {}
        self._ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.running):
            await self.stop(name)

    def make(self, **settings: Any) -> Host:
        return make_host(self._target, stepper=stepper(self._target, 0), **settings)

    async def start(self, name: str, **settings: Any) -> RunningServer:
        host = self.make(**{"port": self._ports.get(name, 0), **settings})
        host.services.served.identity.drafter_fingerprint = b""
        running = self.running[name] = await start(host)
        self._ports[name] = running.port
        return running

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop(0.0)

    def links(self, silence_seconds: float = 20.0) -> list[Server]:
        """To all, in the order in which they were started."""
        return [Server(f"127.0.0.1:{port}", 5.0, silence_seconds, name=name) for name, port in self._ports.items()]

    def sessions(self, name: str) -> int:
        return len(self.running[name].host.services.registry)


def told(screen: Screen) -> list[str]:
    return [steady(each.message) for each in screen.notices if isinstance(each, ServerChanged)]


async def serving_now(engine: ClientEngine, servers: Servers) -> str:
    """The name of the server that answers."""
    port = int(engine.connection.dialer.server.address.rpartition(":")[2])
    return next(name for name, running in servers.running.items() if running.port == port)
