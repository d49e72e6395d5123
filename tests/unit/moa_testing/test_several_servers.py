"""Several servers: an answer goes on to the letter where its server is lost, full, going, silent or another one."""

import asyncio
import math
from dataclasses import replace
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import DrafterChanged, Ended, ExecutionChanged, LinkChanged, LinkState, Settled
from moa_client.conversation.options import AnswerOptions
from moa_client.device.drafter_catalog import DrafterChoice
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.host.text_conversation import TextConversation
from moa_client.link import fleet as fleet_module
from moa_client.link.fleet import Fleet
from moa_client.surface.messages import ConversationFacts
from moa_server.access import limits
from moa_server.access.limits import anonymous
from moa_shared.errors import MismatchError, OverloadedError
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling
from moa_testing import Chat, World
from moa_testing.models import device
from moa_testing.world import LONG

from tests.support.messages import says
from tests.unit.moa_client.host.test_catalog import TOY, at_once
from tests.unit.moa_testing.stories import simulated, told

OTHER = pb.Identity(target_id="other", target_fingerprint=b"o", tokenizer_hash=b"k", execution=b"e")
SAMPLED = replace(LONG, sampling=Sampling(0.7, seed=1))
CALLER = anonymous("ipv4:10.9.9.9:9")
PER_MINUTE = 1200  # tokens: fewer than the target writes
CLIENTS = 100
OTHER_MODEL = snapshot(
    "one (10.0.0.1:12786) serves other now: this conversation with toy is kept, and continues when toy is served there again; to talk to the other model, start another chat."
)


async def described(world: World, *names: str, **options: Any) -> Fleet:
    fleet = Fleet([world.server(name, **options) for name in names])
    await fleet.describe()
    return fleet


@pytest.mark.parametrize("settings", [LONG, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafts", [True, False], ids=["drafting", "without a drafter"])
@simulated
async def test_an_answer_goes_on_at_the_other_server_and_stays_there(
    world: World, settings: AnswerSettings, drafts: bool
) -> None:
    world.start("two")
    chat = world.chat(fleet=await described(world, "one", "two"), drafts=drafts)
    first = chat.engine.connection.dialer
    chat.then(lambda: world.link(first.server.label.partition(" ")[0]).stop(), committed=6)
    screen = await chat.ask((3, 1), settings)
    assert [line.partition(" answers now instead of ")[1] for line in told(screen)] == [" answers now instead of "]
    world.restart("one" if world.link("one").host is None else "two")
    assert not told(await chat.ask((9, 9), settings))


@simulated
async def test_both_are_gone_and_the_second_comes_back(world: World) -> None:
    world.start("two")
    chat = world.chat(fleet=await described(world, "one", "two"))
    chat.then(world.link("one").stop, committed=6).then(world.link("two").stop).then(
        lambda: world.start("two"), written=5
    )
    screen = await chat.ask()
    assert LinkState.BACK in screen.states


@simulated
async def test_a_cut_of_the_stream_alone_stays_at_the_server_that_has_the_text(world: World) -> None:
    world.start("two")
    chat = world.chat(fleet=await described(world, "one", "two"))
    server = chat.engine.connection.dialer.server.address
    chat.then(chat.engine.connection.lose, committed=6)
    assert not told(await chat.ask())
    assert chat.engine.connection.dialer.server.address == server


@simulated
async def test_a_server_that_makes_no_progress_is_left(world: World) -> None:
    """It still answers beats."""
    world.start("two")
    fleet = await described(world, "one", "two", silence_seconds=0.5)
    fleet.servers[0].rtt_ms = 1.0
    chat = world.chat(fleet=fleet, drafts=False)
    chat.then(lambda: setattr(world.host("one").services.engine.thread, "submit", lambda *_, **__: 0), committed=6)
    assert [line.partition(". ")[2] for line in told(await chat.ask())] == ["The former server makes no progress."]


@simulated
async def test_a_server_of_another_model_is_left_out_by_name(world: World) -> None:
    world.start("strange", identity=OTHER)
    world.start("three")
    fleet = await described(world, "one", "strange", "three")
    assert [line.partition(") ")[2] for line in fleet.skipped] == snapshot(["is left out: it serves other, not toy."])
    chat = world.chat(fleet=fleet)
    chat.then(lambda: world.link(chat.engine.connection.dialer.server.label.partition(" ")[0]).stop(), committed=6)
    await chat.ask()
    assert not len(world.host("strange").services.registry)


@simulated
async def test_an_open_names_no_session_of_another_server(world: World) -> None:
    """Whoever holds a resume token can read the conversation."""
    world.start("two")
    chat = world.chat(fleet=await described(world, "one", "two"))
    make_open, opens = chat.engine.connection._make_open, list[tuple[str, bytes]]()

    def noted(address: str) -> pb.Open:
        message = make_open(address)
        opens.append((address, message.resume_token))
        return message

    chat.engine.connection._make_open = noted
    chat.then(lambda: world.link(chat.engine.connection.dialer.server.label.partition(" ")[0]).stop(), committed=6)
    await chat.ask()
    assert len({address for address, _ in opens}) == 2
    assert not any(token for _, token in opens)


@pytest.mark.parametrize("how", ["drains", "is killed", "is cut off", "is full"])
@simulated
async def test_an_answer_goes_on_at_a_server_that_the_lost_one_has_named(world: World, how: str) -> None:
    world.start("two")
    world.link("nobody")
    world.start().lifecycle.fleet.update(map(world.address, ("nobody", "two")))
    server = world.server()
    chat = world.chat(fleet=Fleet([server]))
    await server.describe()

    def lose() -> None:
        link = world.link()
        if how == "drains":
            world.host().lifecycle.drain()
            world.host().lifecycle.end_answers()
        elif how == "is killed":
            link.stop()
        elif how == "is cut off":
            link.cut()
        else:
            [live] = world.host().services.registry.live_sessions
            live.stream.listener.on_failure(OverloadedError("There is no room."))  # type: ignore[union-attr]

    screen = await chat.then(lose, committed=6).ask()
    assert (chat.engine.connection.dialer.server.address, len(told(screen))) == (world.address("two"), 1)
    world.link().heal()
    world.restart()
    again = world.chat(fleet=Fleet([world.server()]))
    await again.ask()  # it is back: new conversations begin there
    assert again.engine.connection.dialer.server.address == world.address("one")


@simulated
async def test_who_comes_while_a_server_drains_is_told_where_to_go(world: World) -> None:
    world.start("two")
    host = world.start()
    host.lifecycle.fleet.update([world.address("two")])
    host.lifecycle.drain()
    chat = world.chat()
    await chat.ask()
    assert chat.engine.connection.dialer.server.address == world.address("two")


@simulated
async def test_a_client_hears_of_replicas_that_come_later(world: World) -> None:
    host, server = world.start(), world.server()
    chat = world.chat(fleet=Fleet([server]))
    await server.describe()
    assert not server.named
    world.start("two")
    host.lifecycle.fleet.update([world.address("two")])
    await asyncio.sleep(fleet_module.LOOK_SECONDS)
    await chat.ask()
    assert server.named == (world.address("two"),)


def replaced_by_another(world: World) -> Any:
    """Ends the server, and has another model at its address."""
    world.link().stop()
    world.start(identity=OTHER)


@simulated
async def test_another_model_makes_the_answer_wait_for_the_old_one(world: World) -> None:
    """It goes on by itself where it was, and what was committed stays as it is."""
    chat = world.chat()
    chat.then(lambda: replaced_by_another(world), committed=6).then(world.restart, written=30)
    assert told(await chat.ask()) == [OTHER_MODEL]


@simulated
async def test_while_another_model_is_served_answers_are_kept_and_the_server_is_left_in_peace(world: World) -> None:
    chat = world.chat(settings=DraftingSettings(standalone=StandaloneRule(end_ms=0.0)))
    await chat.ask()
    replaced_by_another(world)
    await chat.attend(lambda: bool(told(chat.screen)))
    before = chat.engine.connection.stream_number
    second = await chat.ask((9, 9), settles=False)
    assert chat.engine.connection.stream_number == before + 1  # who asks does not wait for the next attempt
    assert isinstance(second.end, Ended)
    assert (second.end.provisional, told(second), chat.engine.answers.unsettled) == (True, [OTHER_MODEL], 1)
    world.restart()
    chat.engine.go_online()
    await chat.attend(lambda: not chat.engine.answers.unsettled)
    assert chat.engine.conversation.tokens[-80:] == second.text == list(second.of(Settled)[0].tokens)


@simulated
async def test_a_device_that_cannot_write_says_in_the_end_what_it_waited_for(world: World) -> None:
    rule = StandaloneRule(end_ms=2_000.0, leave_ms=2_000.0)
    chat = world.chat(drafts=False, settings=DraftingSettings(standalone=rule))
    with says(MismatchError, OTHER_MODEL):
        await chat.then(lambda: replaced_by_another(world), committed=6).ask()
    assert (told(chat.screen), list(chat.engine.conversation.answer)) == ([OTHER_MODEL], chat.screen.committed)


@simulated
async def test_a_server_that_refuses_without_a_reason_is_tried_twice(world: World) -> None:
    """It describes itself as what it was: then the answer ends with its refusal."""

    refused = 0

    def refuse() -> None:
        nonlocal refused
        refused += 1
        raise MismatchError("Not you.", hint="Go away.")

    world.host().lifecycle.check_open = refuse  # type: ignore[method-assign]
    chat = world.chat()
    with says(MismatchError, "Not you. Go away."):
        await chat.ask()
    assert refused == 2


@simulated
async def test_an_answer_that_continues_in_another_arithmetic_says_so(world: World) -> None:
    other = pb.Identity(execution=b"x")
    other.MergeFrom(pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k"))
    chat = world.chat()
    chat.then(world.link().stop, committed=6).then(lambda: world.start(identity=other))
    screen = await chat.ask()
    assert screen.of(ExecutionChanged) == [
        ExecutionChanged("toy", exact=True, fingerprint=chat.engine.device.target.fingerprint)
    ]
    assert chat.engine.device.identity.execution == b"x"
    assert not (await chat.ask()).of(ExecutionChanged)  # the next answer begins on it


FIRST, SECOND = (pb.Drafter(name=name, fingerprint=name.encode() * 32) for name in "ab")
OTHER_DRAFTER = snapshot(
    "The server has another drafter now: it answers without this device's drafts until this device has that one."
)
NO_DRAFTER = snapshot("The server has no drafter for this device any more: it answers without this device's drafts.")


def drafting(world: World, drafter: pb.Drafter) -> Device:
    """A device with that drafter."""
    choice = DrafterChoice(drafter.name, "why")
    return Device(device(None).target, Drafting(world.drafter, drafter.fingerprint, choice=choice))


def offer(world: World, *drafters: pb.Drafter) -> None:
    """Ends the server, and has one with these drafters at its address."""
    world.link().stop()
    world.start(drafters=drafters)


@pytest.mark.parametrize(("drafters", "message"), [([SECOND], OTHER_DRAFTER), ([], NO_DRAFTER)], ids=["other", "none"])
@simulated
async def test_an_answer_continues_without_drafts_on_a_server_of_another_drafter(
    world: World, drafters: list[pb.Drafter], message: str
) -> None:
    offer(world, FIRST)
    chat = world.chat(held=drafting(world, FIRST))
    chat.then(world.link().stop, committed=6).then(lambda: offer(world, *drafters), written=3)
    assert told(await chat.ask()) == [message]
    assert not told(await chat.ask((9, 9)))


@simulated
async def test_the_other_drafter_is_fetched_meanwhile_and_drafts_from_the_next_question_on(world: World) -> None:
    may_arrive = asyncio.Event()

    async def refit(served: pb.DescribeResponse, *_: object) -> Device:
        assert [each.name for each in served.drafters] == [SECOND.name]
        await may_arrive.wait()
        return drafting(world, SECOND)

    offer(world, FIRST)
    chat = world.chat(held=drafting(world, FIRST), refit=refit)
    chat.then(world.link().stop, committed=6).then(lambda: offer(world, SECOND), written=3)
    screen = await chat.ask()
    assert told(screen) == [OTHER_DRAFTER]
    may_arrive.set()
    await chat.attend(lambda: bool(screen.of(DrafterChanged)))
    assert screen.of(DrafterChanged) == [DrafterChanged(SECOND.name, "why")]
    after = await chat.ask((9, 9))
    assert chat.engine.device.identity.drafter_fingerprint == SECOND.fingerprint
    offer(world, FIRST, SECOND)  # it is refused no more
    await chat.attend(lambda: LinkState.GOOD in after.states[-1:])
    assert not told(after)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited may write six tokens."""
    monkeypatch.setattr(limits, "PIECE_SECONDS", 0.3)


def spend(world: World, left: int) -> None:
    """The server lets its caller write so many tokens more, and then a few at a time."""
    meter = world.start(tokens_per_minute=PER_MINUTE).admission.rates.meter(CALLER)
    assert meter is not None
    meter.read(PER_MINUTE - left)


@pytest.mark.parametrize("drafts", [True, False], ids=["drafter", "none"])
@pytest.mark.usefixtures("in_pieces")
@simulated
async def test_an_answer_over_the_limit_waits_and_goes_on(world: World, drafts: bool) -> None:
    spend(world, 20)
    chat = world.chat(drafts=drafts)
    screen = await chat.ask()
    waits = [each for each in screen.of(LinkChanged) if each.state is LinkState.WAITING]
    assert waits[0].reason == snapshot("The server lets this address read and write 1200 tokens a minute.")
    assert all(0.0 < wait.wait_seconds < 20.0 for wait in waits)
    assert chat.engine.availability.state is not LinkState.WAITING


@pytest.mark.usefixtures("in_pieces")
@simulated
async def test_a_question_over_the_limit_is_answered_when_there_is_room(world: World) -> None:
    spend(world, -20)
    screen = await world.chat(drafts=False).ask()
    assert screen.states[0] is LinkState.WAITING


@pytest.mark.usefixtures("in_pieces")
@simulated
async def test_a_link_that_is_cut_at_the_limit_costs_no_word(world: World) -> None:
    spend(world, 20)
    chat = world.chat()
    chat.then(world.link().cut, state=LinkState.WAITING).then(world.link().heal, state=LinkState.OFFLINE)
    await chat.ask()


@pytest.mark.parametrize("crosses", [False, True])
@simulated
async def test_a_stream_that_the_server_ends_as_idle_is_opened_with_the_next_question(
    world: World, crosses: bool
) -> None:
    """Whether the client has heard of the end, or its question crosses it."""
    host, chat = world.start(idle_seconds=60), world.chat()
    await chat.ask()
    await asyncio.sleep(61.0)
    host.lifecycle.end_idle()
    connection = chat.engine.connection
    if not crosses:
        asyncio.get_running_loop().call_later(10.0, chat.engine.wake)
        await chat.attend(lambda: not connection.is_up and not connection.is_trying)
        assert chat.engine.availability.state is not LinkState.OFFLINE
    streams = connection.stream_number
    await chat.ask((9, 9))
    assert connection.stream_number == streams + 1


@simulated
async def test_a_conversation_without_questions_leaves_its_stream_and_continues_on_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    held, options = device(world.drafter()), AnswerOptions(temperature=0, top_p=1, max_tokens=12)
    held = replace(held, target=replace(held.target, tokenizer=cast("Any", TOY)))
    facts = ConversationFacts("", "", "toy", "", online=True)
    conversation = TextConversation(world.chat(held=held).engine, facts, idle_seconds=60.0)
    for question in ("a cat", "and its hat"):
        conversation.task.ask(question, options)
        await asyncio.sleep(30.0)
        assert conversation.engine.connection.is_up
        await asyncio.sleep(60.0)
        assert not conversation.engine.connection.is_up
        tokens, answer = conversation.engine.conversation.tokens, list(conversation.engine.conversation.answer)
        settings = conversation.publisher.answers[-1].options.settings()  # with what was left open
        assert answer == world.target.answer(tokens[: len(tokens) - len(answer)], settings)
    await conversation.close()


@pytest.mark.parametrize("replicas", [["two", "three"], []], ids=["two replicas", "the same server"])
@simulated
async def test_a_crowd_that_loses_its_server_finishes_every_answer(world: World, replicas: list[str]) -> None:
    """The server is killed; it had named two replicas, or comes back itself, with room for a quarter of the crowd."""
    for name in replicas:
        world.start(name, max_streams=CLIENTS // 4, prefill_chunk=100)
    world.start(max_streams=CLIENTS, max_sessions=CLIENTS, prefill_chunk=100).lifecycle.fleet.update(
        map(world.address, replicas)
    )
    patient = DraftingSettings(standalone=StandaloneRule(leave_ms=math.inf))
    fleets = [await described(world, "one", silence_seconds=300.0) for _ in range(CLIENTS)]
    chats = [world.chat(fleet=fleet, drafts=False, settings=patient) for fleet in fleets]

    async def ask_and_leave(chat: Chat) -> None:
        await chat.ask()
        await chat.engine.close()

    answers = asyncio.gather(*map(ask_and_leave, chats))
    await asyncio.sleep(1.0)
    world.link().stop()
    if not replicas:
        world.start(max_streams=CLIENTS // 4, prefill_chunk=100)
    await answers
    assert max(chat.engine.connection.stream_number for chat in chats) <= 20
    assert any(chat.engine.connection.stream_number > 2 for chat in chats)
