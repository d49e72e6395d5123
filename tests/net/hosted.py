"""A device's host of conversations, with a real server of the tiny target, and a link to it that can be cut."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from moa_client.host.host import Host, Reached, Started
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.app import RunningServer
from moa_server.verifier import Target

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper
from tests.net.server_peer import VOCAB, decode, make_host, serving
from tests.support.answer_events import PlainTokenizer


class Characters(PlainTokenizer):
    """The same in the vocabulary of the tiny target."""

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        return [token % VOCAB for token in super().encode(text)]

    special_tokens: Mapping[str, int] = {}

    def decode(self, tokens: Sequence[int]) -> str:
        return decode(tokens)

    def shown(self, tokens: Sequence[int]) -> str:
        return decode(tokens)

    def token_bytes(self, token: int) -> bytes:
        return decode([token]).encode()


@dataclass(frozen=True, slots=True)
class Hosted:
    """A host and its server. `link`: between them; None: they are next to each other."""

    host: Host
    server: RunningServer
    link: LinkHandle | None

    @property
    def answers(self) -> int:
        """How many answers the server has under way."""
        return sum(not live.is_idle for live in self.server.host.services.registry.live_sessions)


@asynccontextmanager
async def hosting(
    target: Target, *, far: bool = False, served: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Hosted]:
    """A host. `far`: over a link that can be cut; `served`: settings of the server, `settings`: of the client."""

    held = device(target, "chain")
    files = cast("Any", SimpleNamespace(config={"vocab_size": VOCAB}, target_id="tiny"))
    held = replace(held, target=replace(held.target, files=files, tokenizer=cast("Any", Characters())))
    async with AsyncExitStack() as stack:
        made = make_host(target, stepper=stepper(target, 0), **(served or {}))
        running = await stack.enter_async_context(serving(made))
        address = f"127.0.0.1:{running.port}"
        between = await stack.enter_async_context(open_link("perfect", upstream=address)) if far else None
        address = between.target if between is not None else address
        link = await stack.enter_async_context(connect([Server(address, 5.0, 20.0)]))
        started = Started(held, Reached(await link.describe(), 1.0))
        host = Host(ClientSettings(server=address, **settings), link, started)
        stack.push_async_callback(host.close)
        yield Hosted(host, running, between)
