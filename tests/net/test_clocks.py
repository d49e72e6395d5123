"""Clocks that differ: no time of day crosses the wire, so a device whose clock is hours off gets its answer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest
from grpc.aio import _utils
from moa_client.conversation.events import Committed, Ended, Event
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_talk import PROMPT, Screen, watch
from tests.net.fleet_servers import SAMPLED, WAITING
from tests.net.server_peer import VOCAB, generate
from tests.support.programs import PATIENCE, environment
from tests.support.tiny_models import save_tiny_model

HOURS = 3600.0


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server in a process of its own, whose clock is right; gives its address."""
    command = [
        *(sys.executable, "-m", "moa_server", "serve", str(folder / "tiny"), "--drafter", "none", "--port", "0"),
        *("--kv-bytes", "4000000", "--allow-ignore-end-of-text"),
    ]
    surroundings = environment("proto", "shared", "server", "kernels")
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of two servers of one model."""
    folder = tmp_path_factory.mktemp("clocks")
    save_tiny_model(folder / "tiny")
    with serving(folder) as one, serving(folder) as two:
        yield [one, two]


class Clock:
    """A device's clock, so many seconds fast."""

    def __init__(self) -> None:
        self.fast_seconds = 0.0
        self._true_ns = time.time_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        return self._true_ns() + int(1e9 * self.fast_seconds)


@pytest.mark.parametrize("hours", [[6], [-6], [0, 6, -6]], ids=["fast", "slow", "set again and again"])
async def test_an_answer_that_moves_to_another_server_is_whole_whatever_the_clock_says(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, hours: list[int]
) -> None:
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        alone, _ = await generate(channel, PROMPT, SAMPLED)
    clock, turns = Clock(), iter(hours)
    monkeypatch.setattr(
        _utils, "time", SimpleNamespace(time=time.time)
    )  # gRPC's C core has the same, and is not turned
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    clock.fast_seconds = next(turns) * HOURS
    screen = Screen()
    async with connect([Server(address, PATIENCE, PATIENCE) for address in addresses]) as link:
        served = await link.describe()
        held = Device(cast(Any, None), cast(Any, None), served.identity)
        engine = ClientEngine(link, held, VOCAB, Codec.INT4, WAITING)

        async def move(event: Event) -> None:
            if isinstance(event, Committed):
                clock.fast_seconds = next(turns, clock.fast_seconds / HOURS) * HOURS
                if not screen.cuts:
                    screen.cuts += 1
                    engine.connection.dialer.on_stalled()
                    await engine.connection.lose()

        try:
            await watch(engine, screen, PROMPT, SAMPLED, move)
        finally:
            await engine.close()
    assert screen.committed == alone
    assert screen.end == Ended(Finish.MAX_TOKENS)
    assert len(screen.notices) == 1  # that another server answers now
