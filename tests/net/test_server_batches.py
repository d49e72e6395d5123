"""Sixteen sessions in one forward, one of which goes wrong or away: the others keep their texts and their place in
every forward.

A round is a forward of all sessions, with what is run again if it fails. Time plays no part: whoever is answering is in
every round.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.app import RunningServer
from moa_server.engine.stepper import Outcome, SessionTensors, Stepper, Work
from moa_server.session.session import SessionPhase
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import InternalError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import CONTEXT, VOCAB, Peer, make_host, plain_text, serving, toy_source, until
from tests.support.tiny_models import tiny_kernel_target, tiny_model

USERS = 16
VICTIM = 7
ANSWER = 30  # tokens; less than a server runs ahead of a silent client, so nobody has to acknowledge
CHUNK = 32  # tokens of prompts in a forward at most
Fault = Callable[[Sequence[Work], int], list[TargetOutput]]


class WatchedStepper(Stepper):
    """Writes down who is in each round, and can be told to fail, or to stop, in a forward that holds the victim.

    A session goes by the first token of its prompt. No forward runs while the gate is closed, as it is at first.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target, [toy_source(target)])
        self.rounds: list[list[int]] = []  # those that chose tokens
        self.rows_read: list[int] = []  # of prompts, in the same rounds
        self.fault: Fault | None = None
        self.fails_from = 1 << 30  # tokens of the victim
        self.holds_at = 1 << 30  # closes the gate
        self.held, self.gate = threading.Event(), threading.Event()
        self._names: dict[int, int] = {}
        self._known: list[SessionTensors] = []  # so that no other takes its place in memory
        self._inside = False

    def verify_all(self, work: Sequence[Work]) -> list[Outcome]:
        if self._inside:
            return super().verify_all(work)
        self._inside = True
        for each in work:
            tensors, plan = each.tensors, each.plan
            if plan.cached == 0 and id(tensors) not in self._names:
                self._names[id(tensors)] = plan.feed[0]
                self._known.append(tensors)
        self.rounds.append([self._names[id(each.tensors)] for each in work if each.plan.chooses])
        self.rows_read.append(sum(len(each.plan.feed) for each in work if not each.plan.chooses))
        try:
            return super().verify_all(work)
        finally:
            self._inside = False

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        numbers = [self._names[id(each.tensors)] for each in work]
        place = numbers.index(VICTIM) if VICTIM in numbers else None
        if place is not None and work[place].plan.cached >= self.holds_at:
            self.holds_at = 1 << 30
            self.gate.clear()
            self.held.set()
        assert self.gate.wait(60)
        if place is not None and self.fault is not None and work[place].plan.cached >= self.fails_from:
            return self.fault(work, place)
        return self.run(work)

    def run(self, work: Sequence[Work]) -> list[TargetOutput]:
        """A forward in which nothing goes wrong."""
        return super().forward_all(work)

    def rounds_missed(self, number: int) -> int:
        """In how many rounds a session was not that came between two of its own."""
        inside = [place for place, names in enumerate(self.rounds) if number in names]
        return inside[-1] - inside[0] + 1 - len(inside)


class User:
    """Asks one question; the server runs ahead, so that its answer steps in every round."""

    def __init__(self, channel: grpc.aio.Channel, target: Target, number: int, prompt_tokens: int = 6) -> None:
        self.number = number
        self.prompt = [number, *((13 * number + 5 * place) % VOCAB for place in range(1, prompt_tokens))]
        room = CONTEXT - prompt_tokens
        self.settings = AnswerSettings(
            Sampling(number % 2, seed=number), max_tokens=min(room, ANSWER), ignore_end_of_text=True
        )
        self.expected = plain_text(target, self.prompt, self.settings)[0]
        self.channel = channel
        self.peer = Peer(channel)
        self.opened: pb.Opened | None = None

    @property
    def answer(self) -> list[int]:
        return self.peer.tokens[len(self.prompt) :]

    async def open(self, *, run_ahead: bool = True) -> None:
        self.opened = await self.peer.open(run_ahead=run_ahead, memory=self.number % 3 > 0)

    async def ask(self) -> None:
        await self.peer.ask(self.prompt, self.settings)

    async def finish(self, draft: Callable[[Any], Awaitable[None]] | None = None) -> None:
        """Reads the whole answer; `draft` is called after each verdict before the last."""
        while not (self.peer.verdicts and self.peer.verdicts[-1].finish):
            await self.peer.verdict()
            if draft is not None and not self.peer.verdicts[-1].finish:
                await draft(self)
        assert self.answer == self.expected

    async def resume(self, token: bytes = b"") -> None:
        """Continues the answer on another stream with what we hold of it; `token`: of the session to continue."""
        held, self.peer = self.peer.tokens, Peer(self.channel)
        self.peer.append(held)
        ask = self.peer.ask_message([], self.settings, answer_start=len(self.prompt))
        self.peer.tokens, self.peer.hashes = [], type(self.peer.hashes)()
        await self.peer.open(tokens=held, resume_token=token, run_ahead=True, ask=ask)

    async def is_heard(self) -> None:
        """Waits until the server has taken in all frames so far, and we its own."""
        await self.peer.send(beat=pb.Beat(stamp=1))
        while (frame := await self.peer.receive()) is not None and frame.WhichOneof("frame") != "beat":
            pass


@pytest.fixture(scope="module")
def kernel_target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


@pytest.fixture
def stepper(kernel_target: Target) -> WatchedStepper:
    return WatchedStepper(kernel_target)


@pytest.fixture
async def running(kernel_target: Target, stepper: WatchedStepper) -> AsyncIterator[RunningServer]:
    try:
        async with serving(make_host(kernel_target, stepper=stepper, prefill_chunk=CHUNK)) as running:
            yield running
    finally:
        stepper.gate.set()


@pytest.fixture
async def users(running: RunningServer, kernel_target: Target) -> AsyncIterator[list[User]]:
    """Sixteen users, each with an open stream."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        users = [User(channel, kernel_target, number) for number in range(USERS)]
        for user in users:
            await user.open()
        yield users


def others(users: Sequence[User]) -> list[User]:
    return [user for user in users if user.number != VICTIM]


async def ask_all(users: Sequence[User], stepper: WatchedStepper, running: RunningServer) -> None:
    """All answers begin within two rounds."""
    for user in users:
        await user.ask()
    sessions = [live.session for live in running.host.services.registry.live_sessions]
    await until(lambda: sum(session.phase is SessionPhase.ANSWERING for session in sessions) == len(users))
    stepper.gate.set()


async def finish_unharmed(users: Sequence[User], stepper: WatchedStepper) -> None:
    """They get their texts, and were in every round from their first token to their last."""
    await asyncio.gather(*(user.finish() for user in users))
    assert {user.number: stepper.rounds_missed(user.number) for user in users} == dict.fromkeys(
        (user.number for user in users), 0
    )


class Drafting(User):
    """Drafts trees of which some nodes are right."""

    def __init__(self, channel: grpc.aio.Channel, target: Target, number: int, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(channel, target, number, self.chance.choice([3, 20, 90]))

    async def run(self) -> None:
        await self.open(run_ahead=self.chance.random() < 0.5)
        await self.ask()
        await self.finish(Drafting.draft_some)

    async def draft_some(self) -> None:
        done = len(self.answer)
        right = self.expected[done : done + self.chance.randrange(5)]
        wrong = [token for token in (self.chance.randrange(VOCAB) for _ in range(2)) if token not in right[:1]][:1]
        await self.peer.draft([*right, *wrong], [*range(-1, len(right) - 1), *[-1] * len(wrong)])


@pytest.mark.parametrize("seed", range(3))
async def test_every_session_gets_the_targets_text(
    running: RunningServer, kernel_target: Target, stepper: WatchedStepper, seed: int
) -> None:
    stepper.gate.set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        users = [Drafting(channel, kernel_target, number, 100 * seed + number) for number in range(12)]
        await asyncio.gather(*(user.run() for user in users))
    assert max(map(len, stepper.rounds)) > 2
    assert any(verdict.accepted for user in users for verdict in user.peer.verdicts)


def device_error(work: Sequence[Work], place: int) -> list[TargetOutput]:
    raise RuntimeError("the device is on fire")


def out_of_memory(work: Sequence[Work], place: int) -> list[TargetOutput]:
    raise MemoryError


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (device_error, "The server failed in this session (RuntimeError)"),
        (out_of_memory, "The server failed in this session (MemoryError)"),
        (None, "The target's logits at position 16 are not finite"),
    ],
    ids=["error", "memory", "nan"],
)
async def test_a_fault_costs_one_session_of_sixteen_its_stream(
    users: list[User], stepper: WatchedStepper, running: RunningServer, fault: Fault | None, message: str
) -> None:
    def no_numbers(work: Sequence[Work], place: int) -> list[TargetOutput]:
        outputs = stepper.run(work)
        outputs[place].logits[:] = float("nan")
        return outputs

    victim = users[VICTIM]
    stepper.fault, stepper.fails_from = fault or no_numbers, len(victim.prompt) + 9
    await ask_all(users, stepper, running)
    bystanders = asyncio.gather(*(user.finish() for user in others(users)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await victim.peer.done()
    error = error_from_rpc(caught.value)
    assert isinstance(error, InternalError)
    assert message in str(error)
    await bystanders
    await finish_unharmed(others(users), stepper)
    failed = max(place for place, names in enumerate(stepper.rounds) if VICTIM in names)
    assert len(stepper.rounds[failed]) == USERS
    assert victim.answer == victim.expected[:10]
    assert len(running.host.services.registry) == USERS - 1

    stepper.fault = None
    await victim.resume()  # what it holds is enough
    await victim.finish()


async def leave(victim: User, running: RunningServer) -> None:
    await victim.peer.bye()
    await until(lambda: len(running.host.services.registry) == USERS - 1)


async def break_off(victim: User, running: RunningServer) -> None:
    victim.peer.call.cancel()
    await until(lambda: running.host.services.registry.detached == 1)


async def take_over(victim: User, running: RunningServer) -> None:
    """The same conversation on another stream, which continues the answer."""
    assert victim.opened is not None
    await victim.resume(victim.opened.resume_token)


async def ask_again(victim: User, running: RunningServer) -> None:
    """Another question in the middle of the answer."""
    await victim.is_heard()
    question, victim.prompt = victim.prompt, [*victim.peer.tokens, *victim.prompt]
    await victim.peer.ask(question, victim.settings)
    await victim.is_heard()


@pytest.mark.parametrize("way", [leave, break_off, take_over, ask_again])
async def test_who_goes_while_its_segment_is_computed_disturbs_nobody(
    users: list[User],
    stepper: WatchedStepper,
    running: RunningServer,
    kernel_target: Target,
    way: Callable[[User, RunningServer], Awaitable[None]],
) -> None:
    victim = users[VICTIM]
    stepper.holds_at = len(victim.prompt) + 9
    await ask_all(users, stepper, running)
    await until(stepper.held.is_set)
    rounds = len(stepper.rounds)
    assert len(stepper.rounds[-1]) == USERS
    await way(victim, running)
    stepper.gate.set()
    await finish_unharmed(others(users), stepper)
    if way is leave:
        assert not any(VICTIM in names for names in stepper.rounds[rounds:])
        return
    if way is break_off:
        await take_over(victim, running)
    victim.expected = plain_text(kernel_target, victim.prompt, victim.settings)[0]
    await victim.finish()
