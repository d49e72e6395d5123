"""A defect in the connection's own code: the answer ends with an error that says so, and does not hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Event
from moa_client.drafting.settings import DraftingSettings
from moa_client.link.server import Server
from moa_client.link.stream import Stream
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import InternalError

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, SETTINGS, Screen, talking, watch
from tests.net.server_peer import PATIENCE, until
from tests.support.messages import raises

WAITING = DraftingSettings(run_ahead=False)


async def fail(*_: Any, **__: Any) -> None:
    raise ValueError("a defect")


@pytest.mark.parametrize("place", [(Server, "open"), (Stream, "receive")], ids=["opening", "reading"])
async def test_a_defect_before_the_answer_ends_it(
    target: Target,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: tuple[type, str],
) -> None:
    monkeypatch.setattr(*place, fail)
    async with (
        asyncio.timeout(PATIENCE),
        talking(target, f"127.0.0.1:{server.port}", held=device(target, "none")) as engine,
    ):
        with raises(
            InternalError,
            snapshot("The connection has failed (ValueError). This is a defect of moa: please report it with the log."),
        ):
            await watch(engine, Screen())
    assert "Traceback" in caplog.text
    assert "ValueError: a defect" in caplog.text


async def test_a_defect_of_the_writer_in_the_answer_ends_it(
    target: Target, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()

    async def break_it(event: Event) -> None:
        if isinstance(event, Committed):
            monkeypatch.setattr(Stream, "send", fail)
            engine.connection.send(pb.ClientFrame(draft=pb.Draft()))
            await until(lambda: not engine.connection.is_up)

    address, held = f"127.0.0.1:{server.port}", device(target, "none")
    async with asyncio.timeout(PATIENCE), talking(target, address, WAITING, held=held) as engine:
        with raises(
            InternalError,
            snapshot("The connection has failed (ValueError). This is a defect of moa: please report it with the log."),
        ):
            await watch(engine, screen, PROMPT, SETTINGS, break_it)
