"""What is said on a stream, made again elsewhere, and logged."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock, Mock

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Event, LinkChanged, LinkState, ServerChanged
from moa_client.host.publisher import log_link_change
from moa_client.link import calls
from moa_client.link.calls import call_best
from moa_client.link.connection import ServerConnection
from moa_client.link.fleet import Fleet
from moa_client.link.frames import FrameSender
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
from moa_shared.protocol.messages import Draft

from tests.support.scripted_server import MODEL
from tests.unit.moa_client.link.test_server_choice import Home


async def test_a_server_that_is_gone_needs_no_goodbye() -> None:
    call, ended = Mock(write=AsyncMock(side_effect=asyncio.InvalidStateError)), Mock()
    await Stream(call, StreamTraffic(), on_end=ended).say_goodbye()
    call.cancel.assert_called_once_with()
    ended.assert_called_once_with()


async def address_of(server: Server) -> str:
    return server.address


async def test_a_call_is_made_again_at_a_server_that_the_lost_one_had_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_SECONDS", 0.01)
    home = Home()
    fleet = Fleet([home])
    await fleet.describe()
    home.fail()
    assert await call_best(fleet, MODEL, address_of, seconds=1.0) == home.other.address
    await fleet.close()


FIRST = Draft(1, 4, 99, 0, (7,))
SECOND = Draft(1, 4, 0, 1, (8,))


def test_a_draft_that_was_not_sent_is_not_continued() -> None:
    sent: list[pb.ClientFrame] = []
    wire = SimpleNamespace(is_up=False, stream_number=1, queue_frame=sent.append)
    frames = FrameSender(cast(ServerConnection, wire))
    frames.send_draft(FIRST)
    wire.is_up = True
    frames.send_draft(SECOND)
    assert sent == [pb.ClientFrame(draft=pb.Draft(epoch=1, base=4, first_node=1, tokens=[8]))]


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (LinkChanged(LinkState.OFFLINE, "no frame for 1 s"), [(logging.WARNING, "link offline: no frame for 1 s")]),
        (LinkChanged(LinkState.BACK), [(logging.WARNING, "link back")]),
        (LinkChanged(LinkState.SLOW), [(logging.INFO, "link slow")]),
        (ServerChanged("model", "Another one."), [(logging.WARNING, "server replaced: Another one.")]),
        (Committed((1, 2)), []),
    ],
)
def test_only_the_link_and_the_server_are_logged(
    event: Event, lines: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "moa_client"):
        log_link_change(event)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == lines
