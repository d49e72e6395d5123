"""Fixtures of the tests over loopback: tiny targets, a server, channels to it, a fleet."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from moa_server.app import RunningServer
from moa_server.verifier.kernel_target import KernelTarget

from tests.net.client_talk import Servers
from tests.net.server_peer import MODEL, channel_to, make_host, serving, tiny_target
from tests.support.tiny_models import tiny_kernel_target


@pytest.fixture(scope="session")
def target() -> KernelTarget:
    return tiny_target()


@pytest.fixture(scope="session")
def int8_target() -> KernelTarget:
    """The same as it is served: in int8, with pages to share."""
    return tiny_kernel_target(MODEL)


@pytest.fixture
async def server(target: KernelTarget) -> AsyncIterator[RunningServer]:
    async with serving(make_host(target)) as running:
        yield running


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with channel_to(server) as channel:
        yield channel


@pytest.fixture
async def servers(target: KernelTarget) -> AsyncIterator[Servers]:
    async with Servers(target) as made:
        yield made
