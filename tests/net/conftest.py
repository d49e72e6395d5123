"""Fixtures of the tests over loopback: the tiny target, a server on it, channels to it."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from moa_server.app import RunningServer
from moa_server.verifier.kernel_target import KernelTarget

from tests.net.fleet_servers import Servers
from tests.net.server_peer import make_host, serving, tiny_target


@pytest.fixture(scope="session")
def target() -> KernelTarget:
    return tiny_target()


@pytest.fixture
async def server(target: KernelTarget) -> AsyncIterator[RunningServer]:
    async with serving(make_host(target)) as running:
        yield running


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


@pytest.fixture
async def servers(target: KernelTarget) -> AsyncIterator[Servers]:
    async with Servers(target) as made:
        yield made
