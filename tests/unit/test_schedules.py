"""Client and server as pure state machines with the worst of networks between them: the text is always the target's.

Each schedule loses, doubles and delays frames at random, cuts streams, restarts the server with an empty
cache, lets the client write alone and come back. Frames of one stream arrive in order (it is TCP), those of a
stream that broke may still arrive once: late, and at a peer that has moved on.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, TextStream
from moa_client.conversation.conversation import Conversation, Phase, VerdictEffect
from moa_client.conversation.events import AnswerEvent, Earlier, Ended, Event, LinkChanged, LinkState, Settled
from moa_client.conversation.options import AnswerOptions
from moa_client.drafting.online import DraftExtended, OnlineDrafting
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.memory import MemoryPlan
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.drafting.growing import Growth
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol import messages
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, Verdict
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree
from moa_testing import Screen, Target, World, simulate
from moa_testing.link import Call
from moa_testing.models import FIRST_LOOP, VOCAB, SimulatedCache, SimulatedStepper, decode
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec
from netsim.core.link import Direction

TARGET = Target()
STEPPER = SimulatedStepper(TARGET, lambda: None)
LIMITS = SessionLimits(400, VOCAB, draft_nodes=6, prefill_chunk=5, run_ahead_tokens=9)
SCHEDULES = int(os.environ.get("MOA_SCHEDULES", "2000"))  # `make test-all` tries 10,000; a campaign as many as you like
SCHEDULES_TOGETHER = 500


def any_penalties(chance: random.Random) -> Sampling:
    """Some of all that changes logits, and of what chooses among them."""
    return Sampling(
        chance.choice([0.0, 0.8]),
        top_p=chance.choice([1.0, 0.9]),
        seed=chance.randint(1, 3),
        min_p=chance.choice([0.0, 0.05]),
        repeat_penalty=chance.choice([1.0, 1.2, 2.0]),
        repeat_last_n=chance.choice([-1, 3, 64]),
        presence_penalty=chance.choice([0.0, 0.5, -0.3]),
        frequency_penalty=chance.choice([0.0, 0.3]),
        logit_bias=((chance.randrange(VOCAB), chance.choice([-100.0, 0.5, 2.0])),) if chance.random() < 0.6 else (),
    )


def any_rule(chance: random.Random) -> Any:
    """Drafts as far as a schedule says, and sends as chance will have it."""
    return SimpleNamespace(
        may_grow=lambda draft, _: len(draft) < 9,
        may_send=lambda *_, flush: flush or chance.random() < 0.5,
    )


class Schedule:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.trouble = self.chance.random()  # some schedules are quiet, some are all trouble
        self.conversation = Conversation(VOCAB)
        memory = MemoryPlan(None, {}, Codec.INT4)
        self.drafting = OnlineDrafting(DraftingSettings(), self.conversation, None, memory, rule=any_rule(self.chance))
        self.run_ahead = self.chance.random() < 0.7
        self.limits = replace(LIMITS, checkpoint_tokens=self.chance.choice([0, 2, 3]))  # with or without states
        self.server = self._new_session()
        self.up: deque[Ask | Draft | int] = deque()
        self.down: deque[Verdict] = deque()
        self.is_open = False
        self.written: list[int] = []
        self.prompt = [self.chance.randrange(VOCAB) for _ in range(self.chance.randint(1, 12))]
        sampling = any_penalties(self.chance) if seed % 10 == 0 else Sampling()
        self.settings = AnswerSettings(sampling, max_tokens=self.chance.randint(1, 40), ignore_end_of_text=True)

    def _new_session(self) -> Session:
        self.cache = SimulatedCache(has_states=self.limits.checkpoint_tokens > 0)
        return Session(self.limits, end_of_text=frozenset(), decode=lambda _: "", run_ahead=self.run_ahead)

    def is_right(self) -> bool:
        self.conversation.ask(self.prompt, self.settings)
        for _ in range(3000):
            if self.conversation.phase is Phase.IDLE:
                return list(self.conversation.answer) == TARGET.answer(self.prompt, self.settings)
            self.step()
        raise AssertionError("the answer does not end")

    def step(self) -> None:
        chance, roll = self.chance, self.chance.random()
        if roll < 0.06 * self.trouble:
            self.cut()
        elif roll < 0.08 * self.trouble:
            self.cut()
            self.server = self._new_session()  # restarted: it has lost everything
        elif roll < 0.14:
            self.reach() if not self.is_open else self.repeat()
        elif roll < 0.4:
            self.draft()
        elif roll < 0.6 and self.up:
            self.deliver_up()
        elif roll < 0.8 and self.down:
            self.deliver_down()
        elif self.is_open or chance.random() < 0.5:
            self.plan()
        else:
            self.reach()

    def cut(self) -> None:
        """The stream breaks; what is under way may be lost, or still arrive."""
        if not self.is_open:
            return
        self.is_open = False
        while self.up and self.chance.random() < 0.5:
            self.deliver_up()
        while self.down and self.chance.random() < 0.5:
            self.deliver_down()
        self.up.clear()
        self.down.clear()
        if self.conversation.phase is Phase.ANSWERING and self.chance.random() < 0.7:
            self.written = [self.guess(place) for place in range(self.chance.randint(0, 15))]
            limit = self.settings.max_tokens - len(self.conversation.answer)
            self.written = self.written[:limit]
        self.drafting.restart()
        self.conversation.in_flight.drop()

    def reach(self) -> None:
        """A new stream: Open with everything, the Ask, and what was written alone as one long draft."""
        if self.is_open or self.conversation.phase is not Phase.ANSWERING:
            return
        self.is_open = True
        self.conversation.in_flight.drop()
        ask = self.conversation.ask_from(len(self.conversation.tokens))
        self.drafting.restart()
        self.server.on_open(list(self.conversation.tokens), asks=True)
        self.up.append(ask)
        if self.written:
            message = self.drafting.propose(DraftTree.chain(self.written))
            assert message is not None
            self.up.append(message)
            self.written = []

    def repeat(self) -> None:
        """A frame comes twice."""
        if self.up and isinstance(self.up[0], Draft):
            self.up.appendleft(self.up[0])
        if self.down:
            self.down.appendleft(self.down[0])

    def guess(self, place: int) -> int:
        """What the drafter says `place` tokens after the text: right as long as chance will have it."""
        tokens, sampling = [*self.conversation.tokens], self.conversation.sampling
        for _ in range(place):
            tokens.append(TARGET.next(tokens, sampling))
        return TARGET.next(tokens, sampling) if self.chance.random() < 0.8 else self.chance.randrange(VOCAB)

    def draft(self) -> None:
        if not self.is_open or self.conversation.phase is not Phase.ANSWERING or not self.conversation.answer:
            return
        step = self.drafting.next_step(0.0)
        if step is not None:
            count = self.chance.randint(1, 3)
            parents = [self.chance.randint(-1, len(step.draft) + index - 1) for index in range(count)]
            depths = [0, *step.draft.depths]
            tokens = []
            for parent in parents:
                depths.append(depths[parent + 1] + 1)
                tokens.append(self.guess(depths[-1] - 1))
            if self.chance.random() < 0.2:
                self.deliver_down()  # a verdict overtakes the drafter
            self.drafting.on_extended(0.0, DraftExtended(step, Growth(tuple(tokens), tuple(parents)), None))
        message = self.drafting.take_frame(flush=self.chance.random() < 0.5)
        if message is not None:
            self.up.append(message)
        elif self.chance.random() < 0.3:
            self.up.append(len(self.conversation.tokens))

    def deliver_up(self) -> None:
        if not self.up:
            return
        frame, server = self.up.popleft(), self.server
        if isinstance(frame, Ask):
            backlog = server.on_ask(frame)
            if backlog.is_news:
                self.say(backlog.base, backlog.tokens, backlog.finish)
        elif isinstance(frame, Draft):
            server.on_draft(frame)
        else:
            server.on_ack(frame)

    def say(self, base: int, tokens: tuple[int, ...], finish: Finish) -> None:
        if self.is_open:
            self.down.append(Verdict(self.server.ask_id, base, self.server.hashes.short_at(base), tokens, finish))

    def deliver_down(self) -> None:
        if self.down:
            self.drafting.follow_verdict(0.0, self.down.popleft())

    def plan(self) -> None:
        server = self.server
        plan = server.plan_step()
        if plan is None:
            if self.is_open and not self.up and not self.down and not self.run_ahead:
                in_flight = self.conversation.in_flight  # it waits for a draft, of whatever length
                self.up.append(self.drafting.propose(in_flight.tree) or in_flight.propose(in_flight.tree))
            elif self.is_open and not self.up and not self.down:
                self.up.append(len(self.conversation.tokens))
            return
        verification = STEPPER.verify_plan(self.cache, plan)
        if self.chance.random() < 0.2:
            self.deliver_up()  # something arrives during the forward
        if self.chance.random() < 0.2 * self.trouble:
            self.cut()  # and its stream breaks, and the client is back before it ends
            self.reach()
            self.deliver_up()
        if not plan.chooses:
            server.on_prefilled(plan)
            return
        assert verification is not None
        base = len(server.tokens)
        if server.on_verified(plan, verification):
            self.say(base, verification.taken, verification.finish)


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES_TOGETHER))
def test_the_text_is_the_targets_whatever_happens(first: int) -> None:
    for seed in range(first, first + SCHEDULES_TOGETHER):
        assert Schedule(seed).is_right(), f"schedule {seed}"


VERIFY, COMMIT = StepPlan.verify, Conversation.commit_verdict


def trust(plan: StepPlan, chosen: Sequence[int]) -> Verification:
    """The first node of every draft is taken for the target's word."""
    return VERIFY(plan, [plan.tree.tokens[0] if plan.tree else chosen[0], *chosen[1:]])


def overlook(plan: StepPlan) -> TextBefore:
    """Penalties do not see the draft."""
    return TextBefore(plan.text[: plan.fed], [()] * (1 + len(plan.tree)))


def forget(conversation: Conversation, verdict: Verdict) -> VerdictEffect:
    """Verdicts that are repeated are taken for new ones."""
    held = len(conversation.tokens)
    return COMMIT(conversation, replace(verdict, base=held, prefix_hash=conversation.hashes.short_at(held)))


@pytest.mark.parametrize(
    ("side", "name", "worse", "seeds"),
    [
        (StepPlan, "verify", trust, range(30)),
        (StepPlan, "text_before", property(overlook), range(0, 1000, 10)),
        (Conversation, "commit_verdict", forget, range(30)),
    ],
)
def test_a_side_that_is_wrong_is_found_out(
    side: type, name: str, worse: object, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, name, worse)
    wrong = 0
    for seed in seeds:
        try:
            wrong += not Schedule(seed).is_right()
        except (MoaError, AssertionError):
            wrong += 1
    assert wrong > 10


# ---------------------------------------------------------------- the real client and server, and a user who stops


QUESTIONS = ([3, 1], [7], [2, 2, 5])
MOST_TOKENS_AFTER_STOP = 60  # what may be under way, or chosen while a resume is
PATIENCE = 300.0  # seconds of virtual time for an answer, all trouble included


class Asked(Screen):
    """One question, and what a reader saw of its answer."""

    def __init__(self, turn: Sequence[int], settings: AnswerSettings) -> None:
        super().__init__()
        self.turn, self.settings = turn, settings
        self.finish = Finish.UNFINISHED
        self.is_settled = self.is_given_up = False  # its reader was gone before it ended
        self.shown_at_stop: int | None = None
        self.decoder = self._begun()

    def _begun(self) -> AnswerDecoder:
        return AnswerDecoder(AnswerText(options=AnswerOptions(stop=self.settings.stop)), decode)

    def take(self, event: Event) -> None:
        super().take(event)
        if isinstance(event, AnswerEvent):
            self.decoder.take_event(event)
        if isinstance(event, Ended):
            self.finish, self.is_settled = event.finish, not event.provisional
            assert event.provisional or not self.provisional

    @property
    def may_go_on(self) -> bool:
        """Whether a limit or the user has ended it, so that it can be continued."""
        is_cut = self.finish in (Finish.MAX_TOKENS, Finish.CANCELLED) and not self.settings.stop
        return is_cut and self.is_settled and not self.is_given_up and bool(self.committed)

    def go_on(self, tokens: int) -> None:
        """It is continued by at most so many tokens."""
        before, self.decoder = self.decoder, self._begun()
        self.settings = replace(self.settings, max_tokens=len(self.committed) + tokens)
        self.finish, self.is_settled, self.shown_at_stop = Finish.UNFINISHED, False, None
        self.decoder.text.committed = before.text.committed
        self.decoder.restore(self.committed)

    def settle(self, event: Settled) -> None:
        self.decoder.take_event(event)
        self.committed += event.tokens
        self.provisional.clear()
        self.finish, self.is_settled = event.finish, True

    def check(self, target: Target, before: Sequence[int]) -> None:
        """The answer is the target's, as far as the user let it go."""
        expected = target.answer([*before, *self.turn], self.settings)
        assert self.is_settled
        text = TextStream(decode, self.settings.stop)
        if not self.is_given_up:
            assert self.decoder.text.committed == text.push(self.committed) + text.finish()
        is_stopped = self.shown_at_stop is not None or self.finish is Finish.CANCELLED
        assert self.committed == (expected[: len(self.committed)] if is_stopped else expected)
        assert not is_stopped or len(self.committed) <= (self.shown_at_stop or 0) + MOST_TOKENS_AFTER_STOP


class Visit:
    """A user, a client, a server, and trouble; one schedule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance
        self.trouble = self.chance.random()
        self.stops = self.chance.choice([0.0, 0.3, 0.8])
        rounds = self.chance.choice([0, 0, 1, 4])
        settings = DraftingSettings(rounds=rounds, tree=world.trees, standalone=self.any_rule())
        self.drafts = self.chance.random() < 0.7
        self.engine = world.chat(drafts=self.drafts, settings=settings).engine
        self.asked: list[Asked] = []  # since the conversation began
        self.current: Asked | None = None
        self.asking: asyncio.Task[None] | None = None
        self.wished_offline = False
        if self.chance.random() < 0.1:
            world.link().tamper = self.lose_finish

    def lose_finish(self, call: Call, message: Message) -> None:
        """The client holds an answer's last tokens, and never hears that they are the last."""
        if isinstance(message, pb.ServerFrame) and message.verdict.finish and self.chance.random() < 0.5:
            message.verdict.finish = pb.FINISH_UNSPECIFIED
            asyncio.get_running_loop().call_soon(call.reset)
            self.world.link().tamper = None

    async def run(self) -> None:
        troubles = asyncio.create_task(self.make_trouble())
        try:
            for _ in range(self.chance.randint(1, 4)):
                await self.take_turn()
                await self.rest()
        finally:
            troubles.cancel()
            await asyncio.gather(troubles, return_exceptions=True)
        self.world.link().heal()
        self.engine.go_online()
        async with asyncio.timeout(PATIENCE):
            while self.engine.answers.unsettled:
                await self.take_all(self.engine.attend(lambda: not self.engine.answers.unsettled))
        self.check()
        await self.engine.close()

    async def take_turn(self) -> None:
        engine, chance = self.engine, self.chance
        if len(engine.conversation.tokens) > 100 or chance.random() < 0.1:
            if not engine.answers.unsettled:
                self.check()
            engine.rewind(0)
            self.asked.clear()
        before, turn = self.current, list(chance.choice(QUESTIONS))
        if before is not None and not before.committed and chance.random() < 0.7:
            turn = list(before.turn)  # once more
        self.current = Asked(turn, self.any_settings())
        self.asked.append(self.current)
        await self.answer(self.current, turn)
        asked = self.current
        is_lacking = len(engine.conversation.tokens) < sum(len(each.turn) + len(each.committed) for each in self.asked)
        if asked.is_settled and not asked.committed and (engine.answers.unsettled or is_lacking):
            self.asked.remove(asked)  # a question that got nothing is taken back, unless the server holds it
        while asked.may_go_on and not engine.answers.unsettled and chance.random() < 0.4:
            asked.go_on(chance.choice([1, 10, 60]))
            await self.answer(asked, None)

    async def answer(self, asked: Asked, turn: Sequence[int] | None) -> None:
        """Asks a question, or continues its answer (None), and waits until that is over."""
        availability = self.engine.availability
        self.asking = asyncio.create_task(self.take_all(self.engine.ask(turn, asked.settings)))
        stopper = asyncio.create_task(self.stop(asked)) if self.chance.random() < self.stops else None
        try:
            async with asyncio.timeout(PATIENCE):
                await self.asking
        except asyncio.CancelledError:
            self.give_up(asked)
        except UnavailableError:
            if self.drafts:
                raise
            self.give_up(asked)  # the device cannot write on, and the rule's time for the server is over
            asked.shown_at_stop = len(asked.committed)
        finally:
            if stopper is not None:
                stopper.cancel()
        assert self.wished_offline or not availability.wants_offline, f"it distrusts the server: {availability.error}"

    def any_rule(self) -> StandaloneRule:
        """How the device writes without its server: a slow writer, a careful one, one that soon gives the prompt back."""
        chance = self.chance
        rule = StandaloneRule(chance.choice(["always", "auto", "never"]), least_chance=0.2)
        speed, end_ms, leave_ms = (chance.choice(of) for of in ([0.0, 30.0], [0.0, 500.0], [0.0, 200.0, 3000.0]))
        return replace(rule, tokens_per_s=speed, end_ms=end_ms, leave_ms=leave_ms)

    def any_settings(self) -> AnswerSettings:
        chance = self.chance
        seed = chance.choice([1, 2, FIRST_LOOP, FIRST_LOOP + 1])
        sampling = Sampling(chance.choice([0.0, 0.7]), top_p=chance.choice([1.0, 0.95]), seed=seed)
        if chance.random() < 0.4:
            sampling = any_penalties(chance)
        stop = ("aba", "cc") if chance.random() < 0.2 else ()
        tokens, goes_on, guards = chance.choice([3, 3, 12, 12, 25, 150]), chance.random() < 0.8, chance.random() < 0.5
        return AnswerSettings(sampling, tokens, stop=stop, ignore_end_of_text=goes_on, loop_guard=guards)

    async def take_all(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        earliest = next((each for each in self.asked if not each.is_settled), None)
        if isinstance(event, Settled) and earliest:
            earliest.settle(event)
        elif isinstance(event, Earlier) and earliest:
            earliest.decoder.take_event(event)
        elif not isinstance(event, LinkChanged):
            assert self.current is not None
            self.current.take(event)

    def give_up(self, asked: Asked) -> None:
        """The user did not even wait for the answer's end: what is committed of it stays."""
        conversation = self.engine.conversation
        known = sum(len(each.turn) + (each is not asked) * len(each.committed) for each in self.asked)
        asked.committed = conversation.tokens[known:] if not self.engine.answers.unsettled else []
        asked.finish, asked.is_settled, asked.is_given_up = Finish.CANCELLED, True, True

    async def stop(self, asked: Asked) -> None:
        if self.chance.random() < 0.3:
            loop, link = asyncio.get_running_loop(), self.world.link()
            loop.call_later(self.chance.uniform(0, 0.1), link.cut, Direction.DOWN)
            loop.call_later(self.chance.uniform(0.2, 1.5), link.heal)
        await asyncio.sleep(10 ** self.chance.uniform(-2.5, 0.3))
        if self.chance.random() < 0.5:  # the user loses patience with a server that is silent
            while self.engine.availability.state is not LinkState.OFFLINE:  # noqa: ASYNC110 (ClientEngine tells its reader alone)
                await asyncio.sleep(0.05)
        asked.shown_at_stop = len(asked.committed) + len(asked.provisional)
        self.engine.stop()
        if self.chance.random() < 0.2 and self.asking is not None:
            await asyncio.sleep(self.chance.uniform(0, 0.5))
            self.asking.cancel()

    async def rest(self) -> None:
        """Between two questions."""
        seconds = self.chance.choice([0.0, 0.01, 0.3, 2.0])
        if self.chance.random() < 0.5:
            await asyncio.sleep(seconds)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.take_all(self.engine.attend()), seconds)

    async def make_trouble(self) -> None:
        world, chance = self.world, self.chance
        while True:
            await asyncio.sleep(chance.expovariate(3 * self.trouble + 0.1))
            kind = chance.choice(["cut", "up", "down", "reset", "restart", *(["user"] if self.drafts else [])])
            if kind == "reset":
                world.link().reset(at_once=chance.random() < 0.5)
            elif kind == "restart":
                world.restart()
            elif kind == "user":
                self.wished_offline = True
                self.engine.go_offline()
                await asyncio.sleep(10 ** chance.uniform(-2, 0))
                self.engine.go_online()
                self.wished_offline = False
            else:
                world.link().cut(*(() if kind == "cut" else (Direction(kind),)))
                await asyncio.sleep(10 ** chance.uniform(-2, 0.7))
                if chance.random() < 0.2:
                    world.link().reset()
                world.link().heal()

    def check(self) -> None:
        """The conversation is what a user with no network between would have had."""
        text: list[int] = []
        for asked in self.asked:
            asked.check(self.world.target, text)
            text += [*asked.turn, *asked.committed]
        assert self.engine.conversation.tokens == text


CHATS = SCHEDULES // 20  # one takes as long as 20 schedules; 10,000 are half an hour of one core
CHATS_TOGETHER = 25


def any_link(chance: random.Random) -> Conditions:
    """Near or far, steady or not, and sometimes narrow and lossy."""
    delay = DelaySpec(10 ** chance.uniform(0.0, 1.6), deviation_ms=chance.choice([0.0, 5.0]))
    return Conditions(100e3, delay, Bernoulli(0.02)) if chance.random() < 0.2 else Conditions(delay=delay)


@pytest.mark.parametrize("first", range(0, CHATS, CHATS_TOGETHER))
def test_a_user_who_stops_gets_the_targets_text_too(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOOP_TOKENS", 24), ("LONGEST_RUN", 8), ("LOOK_EVERY", 4)):
        monkeypatch.setattr(messages, name, value)  # the guard against loops ends texts of a simulation's length
    for seed in range(first, first + CHATS_TOGETHER):
        chance = random.Random(seed)
        link, trees = any_link(chance), chance.random() < 0.5
        try:
            options = {"right": chance.random(), "trees": trees, "checkpoint_tokens": chance.choice([0, 3])}
            simulate(lambda world: Visit(world).run(), seed, link=link, **options)
        except Exception as error:
            raise AssertionError(f"chat {seed}") from error
