"""A device's host of conversations, with a real server of the tiny target, and a link to it that can be cut."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from moa.v1 import moa_pb2 as pb
from moa_client.drafting.drafters import ClientDrafter, MoaDrafter
from moa_client.host.host import Host
from moa_client.host.starting import Reached, Started
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.drafting.growing import Growth
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper, with_drafter
from tests.net.server_peer import VOCAB, decode, make_host, serving
from tests.support.scripted_engine import PlainTokenizer


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


class Drafters:
    """Makes drafters that note who calls them on which thread.

    Args:
        target: of which they are.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.calls: list[tuple[int, int]] = []  # drafter and thread, in order
        self.made = 0
        self.busy = 0

    def make(self) -> ClientDrafter:
        calls, number = self.calls, self.made
        self.made += 1
        drafting = device(self._target, "chain").drafting
        assert drafting is not None
        made = drafting.new_drafter()
        assert isinstance(made, MoaDrafter)

        class Noted(MoaDrafter):
            def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
                calls.append((number, threading.get_ident()))
                return super().grow(draft, sampling)

            def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
                calls.append((number, threading.get_ident()))
                super().remember(start, rows, state=state)

        made.__class__ = Noted
        return made


@dataclass(frozen=True, slots=True)
class Hosted:
    """A host that is far from its server."""

    host: Host
    link: LinkHandle
    server: RunningServer


@asynccontextmanager
async def hosting(target: Target, drafters: Drafters) -> AsyncIterator[Host]:
    """A host next to its server."""
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        hosting_at(target, drafters, f"127.0.0.1:{running.port}") as host,
    ):
        yield host


@asynccontextmanager
async def hosting_over_a_link(target: Target, drafters: Drafters, **settings: Any) -> AsyncIterator[Hosted]:
    """A host, its server, and the link between them.

    Args:
        settings: of the client.
    """
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        hosting_at(target, drafters, link.target, **settings) as host,
    ):
        yield Hosted(host, link, running)


@asynccontextmanager
async def hosting_at(target: Target, drafters: Drafters, address: str, **settings: Any) -> AsyncIterator[Host]:
    """A host of the server at an address.

    Args:
        settings: of the client.
    """
    held = with_drafter(device(target, "chain"), lambda _: drafters.make())
    files = cast("Any", SimpleNamespace(config={"vocab_size": VOCAB}, target_id="tiny"))
    held = replace(held, target=replace(held.target, files=files, tokenizer=cast("Any", Characters())))
    sources = cast("Any", SimpleNamespace(served=pb.DescribeResponse()))
    async with connect([Server(address, 5.0, 20.0)]) as link:
        started = Started(held, Reached(await link.describe(), 1.0), sources)
        host = Host(ClientSettings(server=address, **settings), link, started)
        try:
            yield host
        finally:
            await host.close()
