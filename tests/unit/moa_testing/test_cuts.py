"""Links cut in an answer, and programs that end in one: provisional text in between, and in the end the target's own."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Turn
from moa_client.conversation.events import Committed, Corrected, Ended, Event, HeldBack, LinkState, Provisional, Settled
from moa_client.conversation.options import AnswerOptions
from moa_client.device.loading import Device
from moa_client.drafting.settings import READING_SPEED, DraftingSettings, StandaloneRule
from moa_client.history.reading import ConversationOrigin
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.history.store import HistoryStore
from moa_client.host.publisher import Publisher
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.link.stream import Stream
from moa_shared.errors import InternalError, MismatchError
from moa_shared.protocol.messages import AnswerSettings, Finish
from moa_shared.sampling.settings import Sampling
from moa_testing import Chat, Companion, World, simulate
from moa_testing.models import IDENTITY, device
from moa_testing.world import LONG, PATIENT
from netsim.core.link import Direction

from tests.support.messages import says
from tests.unit.moa_testing.stories import simulated, told

SAMPLED = replace(LONG, sampling=Sampling(0.7, seed=1))
SHORT = replace(LONG, max_tokens=20)
WRITING = DraftingSettings(standalone=StandaloneRule("auto"))
AT_ONCE = DraftingSettings()


@pytest.mark.parametrize(
    "committed", [[1], [40], [75], [1, 20, 40, 60]], ids=["early", "halfway", "late", "four times"]
)
@pytest.mark.parametrize("way", [None, Direction.UP, Direction.DOWN])
@simulated
async def test_a_cut_in_an_answer(world: World, committed: list[int], way: Direction | None) -> None:
    link, chat = world.link(), world.chat(settings=replace(PATIENT, rounds=4))
    for place in committed:
        chat.then(lambda: link.cut(*([way] if way else [])), committed=place).then(link.heal, written=3)
    screen = await chat.ask(settings=SAMPLED)
    assert (screen.states[:2], screen.end) == ([LinkState.OFFLINE, LinkState.BACK], Ended(Finish.MAX_TOKENS))


@pytest.mark.parametrize("lost", [[], [Direction.DOWN]], ids=["both", "down"])
@pytest.mark.parametrize("is_open", [False, True], ids=["before the stream", "after the question"])
@simulated
async def test_a_cut_before_the_first_token(world: World, lost: list[Direction], is_open: bool) -> None:
    """The whole beginning of the answer is the device's; the server decides it from its first token on."""
    chat = world.chat()
    if is_open:
        chat.engine.connection.start()
        asyncio.get_running_loop().call_later(1.0, chat.engine.wake)
        await chat.attend(lambda: chat.engine.connection.is_up)
    world.link().cut(*lost)
    screen = await chat.then(world.link().heal, written=3).ask()
    assert screen.most_provisional >= 3


@simulated
async def test_a_server_that_is_restarted_in_an_answer_is_not_noticed_in_the_text(world: World) -> None:
    """The device has no drafter: it waits for the server, and the text continues where it was."""
    await world.chat(drafts=False).then(world.restart, committed=6).ask()


@simulated
async def test_answers_that_end_standalone_are_verified_at_the_next_contact(world: World) -> None:
    chat = world.chat(settings=AT_ONCE, offline=True)
    first, second = [await chat.ask(turn, SHORT, settles=False) for turn in ((3, 1), (9, 9))]
    assert first.end == second.end == Ended(Finish.MAX_TOKENS, provisional=True)
    assert chat.engine.answers.unsettled == 2
    chat.engine.go_online()
    await chat.attend(lambda: not chat.engine.answers.unsettled)
    settled = chat.screen.of(Settled)
    text: list[int] = []
    for turn, screen, event in zip(((3, 1), (9, 9)), (first, second), settled, strict=True):
        text += turn
        written = [token for each in screen.of(Provisional) for token in each.tokens]
        assert list(event.tokens) == world.target.answer(text, SHORT)
        assert event.changed is (list(event.tokens) != written)
        text += event.tokens
    assert chat.engine.conversation.tokens == text


@simulated
async def test_a_prompt_that_comes_back_leaves_its_answer_to_the_server(world: World) -> None:
    """It goes on when there is one, and is told as a whole."""
    rule = StandaloneRule("auto", least_chance=1.0, end_ms=60_000.0, leave_ms=50.0)
    chat = world.chat(settings=DraftingSettings(standalone=rule))
    screen = await chat.then(world.link().cut, committed=6).ask(settles=False)
    assert screen.end == Ended(Finish.UNFINISHED, provisional=True)
    world.link().heal()
    await chat.attend(lambda: not chat.engine.answers.unsettled)
    assert screen.of(Settled)[0].changed
    assert screen.text == world.target.answer([3, 1, 2], LONG)


@simulated
async def test_two_conversations_go_through_a_cut_on_one_link(world: World) -> None:
    """The first one that has noticed the cut renews the connection; the other one uses the new one."""
    fleet, turns = Fleet([world.server()]), ((3, 1), (9, 9))
    chats = [world.chat(fleet=fleet), world.chat(fleet=fleet)]
    chats[0].then(lambda: world.link().cut(seconds=5.0), committed=6)
    await asyncio.gather(*(chat.ask(turn) for chat, turn in zip(chats, turns, strict=True)))
    assert fleet.servers[0].channel_number >= 1


@simulated
async def test_a_stop_before_the_stream_is_open_counts(world: World) -> None:
    chat = world.chat()
    asyncio.get_running_loop().call_soon(chat.stop)
    screen = await chat.ask()
    assert len(screen.committed) < 40
    await chat.ask((9,), SHORT)


@simulated
async def test_an_answer_that_is_abandoned_leaves_the_conversation_usable(world: World) -> None:
    chat = world.chat()
    answered = chat.engine.ask([3, 1], LONG)
    first = await anext(answered)
    assert isinstance(first, Committed)
    await answered.aclose()
    assert chat.engine.conversation.tokens == [3, 1, *first.tokens]
    await chat.ask((9,), SHORT)


async def fail(*_: Any, **__: Any) -> None:
    raise ValueError("a defect")


@pytest.mark.parametrize(
    "place", [(Server, "open"), (Stream, "receive"), (Stream, "send")], ids=["opening", "reading", "writing"]
)
@simulated
async def test_a_defect_ends_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: tuple[type, str]
) -> None:
    chat = world.chat(drafts=False)
    if place[1] == "send":
        chat.then(lambda: monkeypatch.setattr(*place, fail), committed=6)
        chat.then(lambda: chat.engine.connection.queue_frame(pb.ClientFrame(draft=pb.Draft())))
    else:
        monkeypatch.setattr(*place, fail)
    with says(InternalError, "The connection has failed (ValueError)"):
        await chat.ask()
    assert "ValueError: a defect" in caplog.text


def companion(world: World, right: float) -> Device:
    world.right = right
    return device(world.drafter(Companion))


@simulated
async def test_a_companion_that_errs_is_corrected_and_its_text_may_be_kept(world: World) -> None:
    chat = world.chat(held=companion(world, 0.7), settings=WRITING)
    screen = await chat.then(world.link().cut, committed=6).then(world.link().heal, written=30).ask()
    assert screen.of(Corrected)
    withdrawn = chat.engine.answers.withdrawn
    assert withdrawn is not None
    chat.engine.rewind(withdrawn.turns - 1)
    events = chat.engine.answers.keep(withdrawn, lambda _: [3, 1, 2], LONG)
    assert [type(event) for event in events] == [Committed, Ended]
    answer = list(withdrawn.tokens)
    assert answer != screen.committed[: len(answer)]
    assert list(chat.engine.conversation.answer) == answer
    await chat.ask((5, 6))  # its context is what was kept


@simulated
async def test_a_companion_begins_an_answer_whose_question_no_server_has_read(world: World) -> None:
    chat = world.chat(held=companion(world, 1.0), settings=WRITING, offline=True)
    screen = await chat.ask(settings=SHORT, settles=False)
    assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
    assert not screen.of(HeldBack)
    chat.engine.go_online()
    await chat.attend(lambda: not chat.engine.answers.unsettled)
    assert not screen.of(Settled)[0].changed


class Standing:
    """A device with nothing but a companion, and what it takes to continue with a server's model."""

    def __init__(self, world: World, *, fits: bool = True) -> None:
        files = cast(Any, SimpleNamespace(target_id="small"))
        own = pb.Identity(target_id="small", target_fingerprint=b"s", tokenizer_hash=b"k", execution=b"e")
        held = companion(world, 1.0)
        self.device = replace(held, target=replace(held.target, stands_in=True, files=files, identity=own))
        self.fits = fits

    async def adopt(self, served: pb.DescribeResponse, held: Device) -> Device:
        if not self.fits:
            raise MismatchError("small cannot be a companion of toy: token 5 is 'a' there and 'b' here.")
        files = cast(Any, SimpleNamespace(target_id=served.identity.target_id))
        assert held.drafting is not None
        target = replace(held.target, stands_in=False, files=files, identity=served.identity)
        return replace(held, target=target, drafting=replace(held.drafting, is_refused=True))


@simulated
async def test_what_was_written_before_any_server_was_seen_is_continued_by_the_first(world: World) -> None:
    standing = Standing(world)
    chat = world.chat(held=standing.device, settings=PATIENT, offline=True, adopt=standing.adopt)
    screen = await chat.then(chat.engine.go_online, written=12).ask()
    assert chat.engine.device.identity.target_fingerprint == IDENTITY.target_fingerprint
    assert told(screen) == snapshot(
        ["one (10.0.0.1:12786) serves toy, which continues what small on this device has written."]
    )


@simulated
async def test_a_server_with_another_vocabulary_is_named_once_and_the_companion_writes_on(world: World) -> None:
    standing = Standing(world, fits=False)
    chat = world.chat(held=standing.device, settings=WRITING, adopt=standing.adopt)
    screen = await chat.ask(settles=False)
    assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
    assert screen.provisional == world.target.answer([3, 1, 2], LONG)
    assert LinkState.GOOD not in screen.states
    assert told(screen) == snapshot(
        [
            "small cannot be a companion of toy: token 5 is 'a' there and 'b' here. Start the client with the server's model and drafter, or connect to another server."
        ]
    )


OPTIONS = AnswerOptions(temperature=0.7, seed=1, max_tokens=20)
QUESTIONS = {"first": [3, 1, 2], "second": [9, 9], "third": [7, 1]}


def turn_of(question: str, _: object = None) -> Turn:
    return lambda _: QUESTIONS[question]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    with closing(HistoryStore(tmp_path)) as made:
        yield made


class Life:
    """One program after another over one history; each ends when it is left."""

    def __init__(self, world: World, store: HistoryStore) -> None:
        self._world = world
        self._store = store
        self._identifier = self._store.create(ConversationOrigin("toy"))
        self.chat, self._publisher = self._begin(offline=False)

    def begin(self, *, offline: bool = False) -> Chat:
        """The program is killed, and started again."""
        self.chat, self._publisher = self._begin(offline=offline)
        return self.chat

    def _begin(self, *, offline: bool) -> tuple[Chat, Publisher]:
        stored = self._store.reopen(self._identifier)
        chat = self._world.chat(settings=AT_ONCE, offline=offline)
        chat.engine.restore(restored(stored, turn_of))
        recorder = HistoryRecorder(self._store, self._identifier, chat.engine.conversation, stored)
        publisher = Publisher(chat.engine, recorder)
        publisher.resume(stored)
        return chat, publisher

    async def ask(self, question: str, killed: Callable[[Event], bool] = lambda _: False) -> None:
        """Asks, until the answer has ended or the program is killed."""
        answer = self._publisher.begin(question, OPTIONS)
        events = self.chat.engine.ask(lambda _: QUESTIONS[question], OPTIONS.settings())
        async for event in events:
            self._publisher.on_engine_event(event, answer)
            if killed(event):
                await events.aclose()
                return

    async def settle(self) -> list[Settled]:
        """Waits until the server has decided everything."""
        settled = []
        async for event in self.chat.engine.attend(lambda: not self.chat.engine.answers.unsettled):
            self._publisher.on_engine_event(event, None)
            settled += [event] if isinstance(event, Settled) else []
        return settled

    def rewind(self, answers: int) -> None:
        self.chat.engine.rewind(answers)
        self._publisher.rewind(answers)

    def check(self, *questions: str) -> None:
        """The conversation is that of a program that has never ended."""
        text: list[int] = []
        for question in questions:
            text += QUESTIONS[question]
            text += self._world.target.answer(text, OPTIONS.settings())
        assert self.chat.engine.conversation.tokens == text


@pytest.mark.parametrize("kills", [(), (1,), (2,), (1, 2)])
@simulated
async def test_what_was_written_standalone_is_verified_as_if_the_program_had_never_ended(
    world: World, store: HistoryStore, kills: tuple[int, ...]
) -> None:
    life = Life(world, store)
    await life.ask("first")
    life.begin(offline=True)
    for number, question in enumerate(("second", "third"), 1):
        await life.ask(question)
        if number in kills:
            assert life.begin(offline=True).engine.answers.unsettled == number
    life.chat.engine.go_online()
    assert len(await life.settle()) == 2
    life.check("first", "second", "third")


@pytest.mark.parametrize("offline", [False, True], ids=["committed text", "and text of the device"])
@simulated
async def test_an_answer_in_the_middle_of_which_the_program_ends_is_continued(
    world: World, store: HistoryStore, offline: bool
) -> None:
    life, seen = Life(world, store), {Committed: 0, Provisional: 0}

    def killed(event: Event) -> bool:
        if isinstance(event, Committed | Provisional):
            seen[type(event)] += len(event.tokens)
        if offline and seen[Committed] > 3:
            life.chat.engine.go_offline()
        return seen[Provisional if offline else Committed] > 5

    await life.ask("first", killed)
    assert life.begin().engine.answers.unsettled == 1
    [settled] = await life.settle()
    assert settled.written == seen[Provisional]
    await life.ask("second")
    await life.settle()
    life.check("first", "second")


@simulated
async def test_a_rewound_conversation_is_that_of_who_never_asked(world: World, store: HistoryStore) -> None:
    life = Life(world, store)
    await life.ask("first")
    await life.ask("second")
    for question in ("third", "second", "third"):
        life.rewind(1)
        await life.ask(question)
        await life.settle()
        life.check("first", question)
    assert len(world.host().services.registry) == 1  # its session served all of them
    life.rewind(0)
    await life.ask("second")
    life.check("second")


def test_a_companion_writes_for_the_whole_cut_and_what_the_target_would_say_is_kept() -> None:
    for seed in range(4):
        simulate(_cut_for_ten_seconds, seed, right=1.0)


async def _cut_for_ten_seconds(world: World) -> None:
    reading = DraftingSettings(standalone=StandaloneRule("auto", tokens_per_s=READING_SPEED, end_ms=30_000.0))
    chat = world.chat(held=device(world.drafter(Companion)), settings=reading)
    asked = AnswerSettings(Sampling(0.0, seed=1), max_tokens=380, ignore_end_of_text=True, loop_guard=False)
    chat.then(lambda: world.link().cut(seconds=10.0), committed=1)
    screen = await chat.ask([1, 2, 3], asked)
    assert not screen.of(Corrected) + screen.of(HeldBack)
    likely = [event.likely for event in screen.of(Provisional)]
    assert chat.engine.figures.kept == len(likely) >= 100
    assert chat.engine.answers.withdrawn is None
    assert 10 < sum(likely) < 40  # 0.95 for each: 20 tokens, and a few again after a stream that opened too late
    assert likely == sorted(likely, reverse=True)
