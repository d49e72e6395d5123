from __future__ import annotations

import logging

import pytest
from moa_client.conversation.events import Committed, Event, LinkChanged, LinkState, ServerChanged
from moa_client.host.publisher import log_link_change


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
