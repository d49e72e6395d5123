"""The engine's loop with a connection that does what the test says: what it handles, shows and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Ended, Event, LinkState
from moa_client.engine.engine import ClientEngine
from moa_shared.errors import MismatchError, MoaError, ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec

from tests.support.answer_events import plainly_committed
from tests.support.fake_connection import LINK, VOCAB, FakeConnection, bare_device, use_fake_connections

PROMPT = [1, 2, 3]
SETTINGS = AnswerSettings(max_tokens=20)


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClientEngine]:
    use_fake_connections(monkeypatch)
    engine = ClientEngine(LINK, bare_device(), VOCAB, Codec.INT4)
    yield engine
    await engine.close()


def connection_of(engine: ClientEngine) -> FakeConnection:
    return cast(FakeConnection, engine.connection)


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop run until something is so."""
    for _ in range(100):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not become so")


async def answer(engine: ClientEngine) -> list[Event]:
    return [event async for event in engine.ask(PROMPT, SETTINGS)]


async def test_a_question_is_answered(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    assert connection.done == ["start"]
    connection.open()
    assert connection.opens[0].ask.id == 1
    connection.verdict(1, 3, [4, 5])
    connection.verdict(1, 5, [6], finish=pb.FINISH_END_OF_TEXT)
    assert await asking == [plainly_committed(4, 5), plainly_committed(6), Ended(Finish.END_OF_TEXT)]
    assert engine.conversation.tokens == [*PROMPT, 4, 5, 6]
    assert engine.figures.verdicts == 2


async def test_a_server_that_violates_the_protocol_is_left(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.open()
    connection.verdict(1, 9, [4])
    with pytest.raises(ProtocolError, match="a verdict from position 3 or before"):
        await asking
    assert engine.availability.state is LinkState.OFFLINE
    assert "drop" in connection.done
    assert engine.conversation.tokens == []  # a question without an answer is taken back


async def test_a_refused_question_raises_and_is_taken_back(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.end(MoaError("No."))
    with pytest.raises(MoaError, match=r"No\."):
        await asking
    assert engine.conversation.tokens == []


async def test_a_server_that_does_not_fit_is_asked_what_it_is(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asked = asyncio.Event()

    async def describe() -> pb.DescribeResponse:
        asked.set()
        return pb.DescribeResponse(identity=bare_device().identity)

    connection.dialer.describe = describe  # type: ignore[attr-defined]
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.end(MismatchError("drafter", "one", "another"))
    await asked.wait()
    await until(lambda: connection.done == ["start", "start"])  # it has the model: a stream is opened again
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_user_who_stops_gets_the_servers_last_word(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    async with aclosing(engine.ask(PROMPT, SETTINGS)) as events:
        asking = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        connection.open()
        connection.verdict(1, 3, [4])
        await asking
        engine.stop()
        asking = asyncio.ensure_future(anext(events))
        stop = pb.ClientFrame(stop=pb.Stop(ask=1, base=1))
        await until(lambda: stop in connection.sent)
        connection.verdict(1, 4, [5], finish=pb.FINISH_CANCELLED)
        assert await asking == plainly_committed(5)
        assert await anext(events) == Ended(Finish.CANCELLED)
