"""Writes changes of the link's state, and of the server at its other end, into the log."""

from __future__ import annotations

import logging

from moa_client.conversation.events import Event, LinkChanged, LinkState, ServerChanged

log = logging.getLogger(__name__)
OUTAGE = (LinkState.OFFLINE, LinkState.BACK)  # the other states are degrees of a link that works


def log_link_change(event: Event) -> None:
    """One line if the event is a change of the link's state, or of what answers at its other end."""
    if isinstance(event, ServerChanged):
        log.warning("%s: %s", "server changed" if event.what == "address" else "server replaced", event.message)
    if isinstance(event, LinkChanged):
        level = logging.WARNING if event.state in OUTAGE else logging.INFO
        log.log(level, "link %s%s", event.state.value, f": {event.reason}" if event.reason else "")
