from __future__ import annotations

from moa_server.engine.server_drafts import SessionDrafting
from moa_server.engine.stepper import MemorySource
from moa_server.memory.row_store import KeptPlane
from moa_server.session.session import Session, SessionLimits
from moa_shared.protocol.messages import Plane

WIDTHS: dict[KeptPlane, int] = {Plane.MEMORY: 4}


def source() -> MemorySource:
    return MemorySource(lambda rows: rows, 4, 1)


def text_session(*tokens: int) -> Session:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_open(tokens)
    return session


def test_planes_are_added_to_those_of_the_same_source() -> None:
    drafting, first, second = SessionDrafting(), source(), source()
    assert drafting.keep(first, WIDTHS) == [Plane.MEMORY]
    assert drafting.keep(first, {**WIDTHS, Plane.REUSED_STATE: 8}) == [Plane.REUSED_STATE]
    assert drafting.keep(first, WIDTHS) == []
    assert drafting.widths == {Plane.MEMORY: 4, Plane.REUSED_STATE: 8}
    assert drafting.keep(second, WIDTHS) == [Plane.MEMORY]
    assert drafting.widths == WIDTHS


def test_the_server_s_drafter_is_told_each_token_once() -> None:
    drafting = SessionDrafting()
    assert [
        drafting.tell(text_session(1, 2)),
        drafting.tell(text_session(1, 2, 3)),
        drafting.tell(text_session(1, 2, 3)),
    ] == [0, 2, 3]


def test_it_is_told_another_text_from_the_start() -> None:
    drafting = SessionDrafting()
    drafting.tell(text_session(1, 2, 3))
    assert drafting.tell(text_session(1, 9, 3, 4)) == 0
    assert drafting.tell(text_session(1)) == 0
    drafting.forget()
    assert drafting.tell(text_session(1)) == 0
