"""One simulated answer: both ends, the link between them, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moa.v1 import moa_pb2 as pb
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftRule
from moa_shared.errors import InternalError
from moa_shared.protocol.continued_frames import DraftWriter, VerdictWriter
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ack, Draft, Verdict
from netsim.core.conditions import Conditions
from netsim.core.delay import DelaySpec
from netsim.core.link import Direction

from moa_bench.simulation.device import ScriptedDevice
from moa_bench.simulation.events import EventLoop, OneWay
from moa_bench.simulation.server import Costs, SimulatedServer
from moa_bench.simulation.text import PROMPT, VOCAB_SIZE, ScriptedText, by_chance

FRAME_OVERHEAD_BYTES = 14  # headers of an HTTP/2 frame (9) and of gRPC (5)


@dataclass(frozen=True, slots=True)
class SimulatedLink:
    """A link, both directions alike."""

    conditions: Conditions = field(default_factory=Conditions)  # of each direction, as netsim has them
    memory_bytes: int = 0  # that follow each token down

    @classmethod
    def of_delay(cls, mean_ms: float, deviation_ms: float = 0.0, *, correlation_ms: float = 0.0) -> SimulatedLink:
        """A link with only this one-way delay, drawn again for each frame unless it is correlated in time."""
        return cls(Conditions(delay=DelaySpec(mean_ms, deviation_ms, correlation_ms=correlation_ms)))

    @property
    def rtt_ms(self) -> float:
        """Mean round trip, without the time that bytes take."""
        return 2 * self.conditions.delay.effective().mean_ms


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """What one answer came to."""

    arrivals_ms: tuple[float, ...]  # of each token at the client
    forwards: int
    verified_nodes: int
    accepted: int
    stale_nodes: int  # of drafts that came too late
    drafted_nodes: int
    up_bytes: int
    down_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first token."""
        return 1e3 * (len(self.arrivals_ms) - 1) / (self.arrivals_ms[-1] - self.arrivals_ms[0])

    @property
    def up_bytes_a_token(self) -> float:
        return self.up_bytes / len(self.arrivals_ms)


def simulate(
    acceptance: float | Callable[[int], bool],
    link: SimulatedLink,
    *,
    tokens: int = 1000,
    seed: int = 0,
    costs: Costs | None = None,
    drafting: DraftingSettings | None = None,
    rule: DraftRule | None = None,
    round_length: int = 1,
) -> SimulatedAnswer:
    """One answer.

    Args:
        acceptance: of the drafter, a token; or whether it is right about the answer's token of that number.
        drafting: how the client drafts; None: not at all.
        rule: of streamed drafts, in place of the client's own.
        round_length: of synchronous rounds.
    """
    costs = costs or Costs()
    loop = EventLoop()
    text = ScriptedText(tokens, acceptance if callable(acceptance) else by_chance(acceptance, seed))
    up = OneWay(loop, link.conditions, seed, Direction.UP)
    down = OneWay(loop, link.conditions, seed, Direction.DOWN)
    drafts, verdicts = DraftWriter(), VerdictWriter()

    def send_up(message: Draft | Ack) -> None:
        if isinstance(message, Draft):
            frame = pb.ClientFrame(draft=drafts.write(message))
        else:
            frame = pb.ClientFrame(ack=pb.Ack(committed=message.committed))

        def deliver() -> None:
            if isinstance(message, Draft):
                live.on_draft(message)
            else:
                live.on_ack(message.committed)

        up.send(frame.ByteSize() + FRAME_OVERHEAD_BYTES, deliver)

    def send_down(verdict: Verdict) -> None:
        size = pb.ServerFrame(verdict=verdicts.write(verdict)).ByteSize() + FRAME_OVERHEAD_BYTES
        down.send(size, lambda: take_in(verdict))
        if link.memory_bytes:
            down.send(link.memory_bytes * len(verdict.tokens), lambda: None)

    def take_in(verdict: Verdict) -> None:
        arrivals_ms.extend([loop.now_ms] * len(client.on_verdict(verdict)))

    arrivals_ms: list[float] = []
    server = SimulatedServer(loop, costs)
    live = server.open(text, send_down, run_ahead=drafting is None or drafting.server_runs_ahead)
    client = ScriptedDevice(
        VOCAB_SIZE,
        send_up,
        lambda: loop.now_ms,
        text.draft_on if drafting is not None else None,
        costs.draft_ms,
        loop.after,
        drafting or DraftingSettings("off"),
        rtt_ms=link.rtt_ms,
        round_length=round_length,
    )
    if rule is not None:
        client.online.streamed.rule = rule
    live.on_ask(client.ask(PROMPT, AnswerSettings(max_tokens=tokens)))
    loop.run(lambda: not client.is_answering)
    if list(client.conversation.answer) != text.tokens[len(PROMPT) : len(PROMPT) + tokens]:
        raise InternalError("The simulated client got another text than the target wrote.")
    return SimulatedAnswer(
        tuple(arrivals_ms),
        server.forwards,
        server.verified_nodes,
        server.accepted,
        server.stale_nodes,
        client.drafter.drafted_nodes if client.drafter is not None else 0,
        up.bytes,
        down.bytes,
    )
