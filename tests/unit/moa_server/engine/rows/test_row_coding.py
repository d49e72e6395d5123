from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from moa_server.engine.live_session import Attachment, LiveSession
from moa_server.engine.planning.forward_planner import NO_CODING, newest_coding
from moa_server.engine.server_drafts import SessionDrafting
from moa_server.memory.feed import MemoryFeed
from moa_server.session.verification import StepPlan
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane


def test_rows_that_cannot_be_sent_yet_are_not_coded() -> None:
    feed = MemoryFeed({Plane.REUSED_STATE: 512}, Codec.BF16, 1 << 20)
    live = cast("LiveSession", SimpleNamespace(stream=Attachment(feed=feed), drafting=SessionDrafting()))
    plan = cast("StepPlan", SimpleNamespace(cached=0))
    assert [rows.plane for rows in newest_coding(live, plan).at_once] == [Plane.REUSED_STATE]
    feed.rows_ready(1000)
    chunk = feed.take()
    assert chunk is not None
    assert newest_coding(live, plan) is NO_CODING
    feed.on_credit(chunk.nbytes)
    assert newest_coding(live, plan).gives_rows(feed)
