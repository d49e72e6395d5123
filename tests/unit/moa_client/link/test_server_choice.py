"""The search for a server after a loss: who is waited for, and who is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_client.link import server_choice
from moa_client.link.dialer import Dialer
from moa_client.link.fleet import Fleet
from moa_client.link.rank import ServerRank, is_clearly_better, rank
from moa_client.link.server import Server
from moa_client.link.server_choice import Search, ServerChoice
from moa_client.link.stream import StreamTraffic
from moa_client.link.unreachable import certificate_end
from moa_shared.errors import MismatchError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.certificates import Authority
from tests.support.messages import says
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
    with says(UnavailableError, "one is gone. other (127.0.0.1:PORT) serves other, not tiny."):
        await find([one, other], one)


async def test_nobody_answers_in_time() -> None:
    one = ScriptedServer("one")
    one.may_answer.clear()
    with says(UnavailableError, "No server has answered in time."):
        await find([one], one, 0.0)


NEAR = ServerRank(rtt_ms=5.0, step_ms=10.0, has_model=True)
FAR = ServerRank(rtt_ms=80.0, step_ms=10.0, has_model=True)
READS = replace(NEAR, unread_tokens=60, read_ms=0.6)
NOW = 100.0


@pytest.mark.parametrize(
    ("standings", "order"),
    [
        ([FAR, NEAR], [1, 0]),
        ([NEAR, NEAR], [0, 1]),  # the user's order decides a tie
        ([replace(NEAR, load=0.9), FAR], [1, 0]),  # a step there takes ten times as long
        ([replace(NEAR, load=1.0), FAR], [1, 0]),
        ([replace(NEAR, step_ms=200.0), FAR], [1, 0]),
        ([ServerRank(), FAR], [1, 0]),  # nothing is known about the first
        ([replace(NEAR, has_model=False), FAR], [1]),
        ([replace(NEAR, has_drafter=False), FAR], [1, 0]),
        ([replace(NEAR, has_execution=False), FAR], [1, 0]),
        ([replace(NEAR, has_execution=False), replace(FAR, has_drafter=False)], [1, 0]),
        ([NEAR, replace(FAR, has_execution=False), replace(FAR, avoid_until=NOW + 1)], [0, 1, 2]),
        ([replace(NEAR, avoid_until=NOW + 1), FAR], [1, 0]),
        ([replace(NEAR, avoid_until=NOW), FAR], [0, 1]),
        # whoever holds the text is taken, until its answers are so slow that reading elsewhere is quicker
        ([READS, NEAR], [1, 0]),
        ([READS, replace(NEAR, load=0.7)], [1, 0]),
        ([READS, replace(NEAR, load=0.9)], [0, 1]),
        ([READS, FAR], [0, 1]),
        ([replace(READS, read_ms=0.0), FAR], [0, 1]),  # an older version that does not say how fast it reads
        ([replace(NEAR, avoid_until=NOW + 2), replace(FAR, avoid_until=NOW + 1)], [1, 0]),
    ],
)
def test_the_order_of_servers(standings: list[ServerRank], order: list[int]) -> None:
    assert rank(standings, NOW) == order


@pytest.mark.parametrize(
    ("other", "current", "is_better"),
    [
        (NEAR, FAR, True),
        (replace(NEAR, has_execution=False), FAR, False),
        (replace(NEAR, has_execution=False), replace(FAR, has_execution=False), True),
        (FAR, NEAR, False),
        (NEAR, replace(NEAR, rtt_ms=14.0), False),  # that much is jitter
        (replace(FAR, rtt_ms=60.0), FAR, False),
        (replace(NEAR, load=1.0), FAR, False),
        (replace(NEAR, avoid_until=NOW + 1), FAR, False),
        (replace(NEAR, has_model=None), FAR, False),
        (replace(NEAR, has_drafter=False), FAR, False),
        (FAR, replace(NEAR, has_drafter=False), True),
        (NEAR, replace(NEAR, load=0.9), True),
        (READS, replace(NEAR, load=0.8), False),  # the text is read again for too little
        (READS, replace(NEAR, load=0.9), True),
        (replace(READS, unread_tokens=1000), replace(NEAR, load=0.9), False),
    ],
)
def test_a_change_must_pay(other: ServerRank, current: ServerRank, is_better: bool) -> None:
    assert is_clearly_better(other, current, NOW) is is_better


STANDINGS = st.builds(
    ServerRank,
    rtt_ms=st.none() | st.floats(0.1, 1000.0),
    step_ms=st.floats(0.0, 500.0),
    load=st.floats(0.0, 1.0),
    has_model=st.sampled_from([True, False, None]),
    has_drafter=st.booleans(),
    avoid_until=st.floats(0.0, 200.0),
    unread_tokens=st.integers(0, 100_000),
    read_ms=st.floats(0.0, 10.0),
)


@given(STANDINGS, STANDINGS)
def test_two_servers_never_take_turns(one: ServerRank, other: ServerRank) -> None:
    assert not (is_clearly_better(one, other, NOW) and is_clearly_better(other, one, NOW))
    if one.has_model and is_clearly_better(other, one, NOW):
        assert rank([one, other], NOW)[0] == 1


LOST = UnavailableError("The stream broke.")


class Home(ScriptedServer):
    """The user's server, whose fleet has a second one."""

    def __init__(self, *, named: bool = True) -> None:
        self.other = ScriptedServer("another")
        super().__init__("home", named=[self.other.address] if named else [])

    def peer(self, address: str) -> ScriptedServer:
        assert address == self.other.address
        return self.other


async def dial(dialer: Dialer) -> None:
    await dialer.dial(lambda _: pb.Open(identity=MODEL), None, StreamTraffic())


async def served(server: ScriptedServer) -> tuple[Fleet, Dialer]:
    """A conversation that the server serves."""
    fleet = Fleet([server])
    await fleet.describe()
    dialer = Dialer(fleet, PrefixHashes())
    await dial(dialer)
    return fleet, dialer


async def test_a_new_conversation_begins_at_home_again() -> None:
    home = Home()
    fleet, dialer = await served(home)
    dialer.on_lost(LOST, was_useful=True)
    home.fail()
    await dial(dialer)
    home.failure = None
    again = Dialer(fleet, PrefixHashes())
    await dial(again)
    assert (again.address, dialer.address) == (home.address, home.other.address)
    await fleet.close()


@pytest.mark.parametrize(
    ("home", "newest"), [(True, True), (False, True), (True, False), (False, False), (False, None)]
)
async def test_a_fleet_is_there_while_one_that_conversations_can_use_answers(home: bool, newest: bool | None) -> None:
    """`newest`: None: no other server was ever used."""
    users, other = ScriptedServer("home"), ScriptedServer("next")
    fleet = Fleet([users])
    fleet.newest = users if newest is None else other
    for server, answers in ((users, home), (other, newest)):
        if not answers:
            server.fail()
    if home or newest:
        await fleet.check()
    else:
        with pytest.raises(UnavailableError, match="home"):
            await fleet.check()


def test_the_end_is_that_of_the_first_certificate() -> None:
    pem = Authority().issue(days=-3.0).certificate
    end = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    assert certificate_end(f"words before\n{pem.decode()}{Authority().issue().certificate.decode()}") == end
    assert certificate_end("") is certificate_end(pem.decode()[:200]) is None
