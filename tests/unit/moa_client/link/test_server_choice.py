"""The search for a server after a loss: who is waited for, and who is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.link import server_choice
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.link.server_choice import Search, ServerChoice
from moa_shared.errors import MismatchError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.messages import raises
from tests.support.scripted_server import MODEL, ScriptedServer

OTHER_EXECUTION = pb.Identity(target_id="tiny", target_fingerprint=b"t", tokenizer_hash=b"k", execution=b"o")
OTHER_MODEL = pb.Identity(target_id="other", target_fingerprint=b"o", tokenizer_hash=b"k")
LONG = 60.0  # seconds: no test waits for so long


@pytest.fixture(autouse=True)
async def within_time(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(server_choice, "ANSWER_SECONDS", LONG)
    monkeypatch.setattr(server_choice, "ALIKE_SECONDS", LONG)
    async with asyncio.timeout(20.0):
        yield


async def find(servers: Sequence[ScriptedServer], former: ScriptedServer, seconds: float = LONG) -> Server:
    fleet = Fleet(servers)
    choice = ServerChoice(fleet, PrefixHashes())
    choice.needs = MODEL
    try:
        return await Search(choice, former).run(seconds)
    finally:
        await fleet.close()


async def test_the_former_server_is_waited_for_a_moment() -> None:
    one, two = ScriptedServer("one"), ScriptedServer("two")
    one.may_answer.clear()
    finding = asyncio.create_task(find([one, two], one))
    await two.has_answered.wait()
    one.may_answer.set()
    assert await finding is one


async def test_one_of_the_same_execution_is_waited_for() -> None:
    one, odd, three = ScriptedServer("one"), ScriptedServer("odd", OTHER_EXECUTION), ScriptedServer("three")
    one.fail()
    three.may_answer.clear()
    finding = asyncio.create_task(find([one, odd, three], one))
    await odd.has_answered.wait()
    three.may_answer.set()
    assert await finding is three


async def test_another_execution_is_the_last_resort() -> None:
    one, odd = ScriptedServer("one"), ScriptedServer("odd", OTHER_EXECUTION)
    one.fail()
    assert await find([one, odd], one) is odd


async def test_all_answer_and_serve_another_model() -> None:
    servers = [ScriptedServer("one", OTHER_MODEL), ScriptedServer("three", OTHER_MODEL)]
    with pytest.raises(MismatchError):
        await find(servers, servers[0])


async def test_nobody_can_be_had_and_why() -> None:
    one, other = ScriptedServer("one"), ScriptedServer("other", OTHER_MODEL)
    one.fail()
    with raises(
        UnavailableError,
        snapshot(
            "one is gone. other (127.0.0.1:PORT) serves other, not tiny. Check --server HOST:PORT, and that moa-server runs there."
        ),
    ):
        await find([one, other], one)


async def test_nobody_answers_in_time() -> None:
    one = ScriptedServer("one")
    one.may_answer.clear()
    with raises(
        UnavailableError,
        snapshot("No server has answered in time. Check --server HOST:PORT, and that moa-server runs there."),
    ):
        await find([one], one, 0.0)
