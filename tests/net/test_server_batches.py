"""Sixteen sessions in one forward, one of which goes wrong: the others keep their texts and their place in every forward.

A round is a forward of all sessions, with what is run again if it fails. Time plays no part: whoever is answering is in
every round.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio
import pytest
from moa_server.app import RunningServer
from moa_server.engine.stepper import Outcome, SessionTensors, Stepper, Work
from moa_server.session.session import SessionPhase
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import InternalError
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import VOCAB, Peer, channel_to, make_host, plain_text, serving, toy_source, until

USERS = 16
VICTIM = 7
ANSWER = 30  # tokens; less than a server runs ahead of a silent client, so nobody has to acknowledge
CHUNK = 32  # tokens of prompts in a forward at most
Fault = Callable[[Sequence[Work], int], list[TargetOutput]]


class WatchedStepper(Stepper):
    """Writes down who is in each round, and can be told to fail in a forward that holds the victim.

    A session goes by the first token of its prompt. No forward runs while the gate is closed, as it is at first.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target, [toy_source(target)])
        self.rounds: list[list[int]] = []  # those that chose tokens
        self.fault: Fault | None = None
        self.fails_from = 1 << 30  # tokens of the victim
        self.gate = threading.Event()
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
        try:
            return super().verify_all(work)
        finally:
            self._inside = False

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        numbers = [self._names[id(each.tensors)] for each in work]
        place = numbers.index(VICTIM) if VICTIM in numbers else None
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

    def __init__(self, channel: grpc.aio.Channel, target: Target, number: int) -> None:
        self.number = number
        self.prompt = [number, *((13 * number + 5 * place) % VOCAB for place in range(1, 6))]
        self.settings = AnswerSettings(Sampling(number % 2, seed=number), max_tokens=ANSWER, ignore_end_of_text=True)
        self.expected = plain_text(target, self.prompt, self.settings)[0]
        self.peer = Peer(channel)

    async def finish(self) -> None:
        assert await self.peer.finish() == self.expected


@pytest.fixture
def stepper(int8_target: Target) -> WatchedStepper:
    return WatchedStepper(int8_target)


@pytest.fixture
async def running(int8_target: Target, stepper: WatchedStepper) -> AsyncIterator[RunningServer]:
    try:
        async with serving(make_host(int8_target, stepper=stepper, prefill_chunk=CHUNK)) as running:
            yield running
    finally:
        stepper.gate.set()


@pytest.fixture
async def channel(running: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with channel_to(running) as channel:
        yield channel


@pytest.fixture
async def users(channel: grpc.aio.Channel, int8_target: Target) -> list[User]:
    """Sixteen users, each with an open stream."""
    users = [User(channel, int8_target, number) for number in range(USERS)]
    for user in users:
        await user.peer.open(run_ahead=True, memory=user.number % 3 > 0)
    return users


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
    users: list[User],
    stepper: WatchedStepper,
    running: RunningServer,
    channel: grpc.aio.Channel,
    fault: Fault | None,
    message: str,
) -> None:
    def no_numbers(work: Sequence[Work], place: int) -> list[TargetOutput]:
        outputs = stepper.run(work)
        outputs[place].logits[:] = float("nan")
        return outputs

    victim, others = users[VICTIM], [user for user in users if user.number != VICTIM]
    stepper.fault, stepper.fails_from = fault or no_numbers, len(victim.prompt) + 9
    for user in users:
        await user.peer.ask(user.prompt, user.settings)
    sessions = [live.session for live in running.host.services.registry.live_sessions]
    await until(lambda: all(session.phase is SessionPhase.ANSWERING for session in sessions))
    stepper.gate.set()  # all answers begin within two rounds
    bystanders = asyncio.gather(*(user.finish() for user in others))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await victim.peer.done()
    error = error_from_rpc(caught.value)
    assert isinstance(error, InternalError)
    assert message in str(error)
    await bystanders
    assert [stepper.rounds_missed(user.number) for user in others] == [0] * len(others)
    failed = max(place for place, names in enumerate(stepper.rounds) if VICTIM in names)
    assert len(stepper.rounds[failed]) == USERS
    held = victim.peer.tokens
    assert held[len(victim.prompt) :] == victim.expected[:10]
    assert len(running.host.services.registry) == USERS - 1

    stepper.fault = None
    again = Peer(channel)
    await again.resume(held, victim.settings, len(victim.prompt), run_ahead=True)  # what it holds is enough
    assert await again.finish() == victim.expected
