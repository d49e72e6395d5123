"""Many users of one simulated server at once: what each gets, by plain serving, devices' drafts or the server's own.

Virtual time, the server's own schedule and the client's own drafting. Prompts have been read; everybody's answer is
long, and rates are taken after a while, so that only the steady state counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from moa.v1 import moa_pb2 as pb
from moa_client.drafting.settings import DraftingSettings
from moa_server.engine.planning.schedule import MOST_ROWS
from moa_shared.errors import InternalError
from moa_shared.protocol.continued_frames import DraftWriter, VerdictWriter
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ack, Draft, Verdict

from moa_bench.simulation.answer import FRAME_OVERHEAD_BYTES
from moa_bench.simulation.device import ScriptedDevice
from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import ForwardCosts, SimulatedServer, SimulatedSession
from moa_bench.simulation.text import PROMPT, VOCAB_SIZE, ScriptedText, by_chance

LONGEST = 600  # tokens of an answer: more than anybody gets
SETTLE_ROUNDS, ROUNDS = 8, 16  # forwards before rates are taken, and while they are


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """A target on a GPU, by its arithmetic: a forward takes the longer of reading its bytes and computing its rows.

    Args:
        weights_ms: reading the target's weights; `context_ms`: one answer's keys and values.
        row_ms: computing a row.
        launch_ms: what a forward takes besides.
        drafter_ms, drafter_row_ms: a forward of a drafter on the same GPU, and of each further row.
    """

    weights_ms: float
    context_ms: float
    row_ms: float
    launch_ms: float
    drafter_ms: float
    drafter_row_ms: float

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        reading_ms = self.weights_ms + self.context_ms * answers
        return self.launch_ms + max(reading_ms, self.row_ms * (answers + nodes))

    def own_draft_ms(self, answers: float) -> float:
        return self.drafter_ms + self.drafter_row_ms * (answers - 1)


@dataclass(frozen=True, slots=True)
class CrowdWay:
    """How a crowd is served.

    Args:
        acceptance: of drafts; None: none are made.
        own_drafts: tokens that the server drafts for each answer before a forward; 0: devices draft.
        draft_ms: of a device's draft step.
        one_way_ms: delay of every user's link.
        rounds: length of synchronous rounds; 0: drafts are streamed.
        auto: the server drafts, as well as the devices, while that pays.
    """

    acceptance: float | None = None
    own_drafts: int = 0
    draft_ms: float = 5.0
    one_way_ms: float = 10.0
    rounds: int = 0
    auto: bool = False

    @property
    def devices_draft(self) -> bool:
        return self.acceptance is not None and not self.own_drafts

    @property
    def drafting(self) -> DraftingSettings:
        """Of each client."""
        if self.rounds:
            return DraftingSettings("device", rounds=True, run_ahead=False)
        return DraftingSettings("auto" if self.auto else "device")


class _User:
    """A device, its session and the link between them."""

    def __init__(self, loop: EventLoop, server: SimulatedServer, way: CrowdWay, seed: int) -> None:
        text = ScriptedText(LONGEST, by_chance(way.acceptance or 0.0, seed))
        self.tokens = 0
        self.arrivals_ms: list[float] = []  # of verdicts
        self.up_bytes = self.down_bytes = 0  # of frames
        self._drafts, self._verdicts = DraftWriter(), VerdictWriter()
        self._loop, self._delay_ms = loop, way.one_way_ms
        self._live: SimulatedSession = server.open(
            text, self._send_down, run_ahead=not way.rounds, own_acceptance=way.acceptance if way.auto else None
        )
        self._device = ScriptedDevice(
            VOCAB_SIZE,
            self._send_up,
            lambda: loop.now_ms,
            text.draft_on if way.devices_draft else None,
            way.draft_ms,
            loop.after,
            way.drafting,
            rtt_ms=2 * way.one_way_ms,
            round_length=way.rounds or 1,
        )
        self._live.on_ask(self._device.ask(PROMPT, AnswerSettings(max_tokens=LONGEST)))

    def _send_up(self, message: Draft | Ack) -> None:
        if isinstance(message, Draft):
            frame = pb.ClientFrame(draft=self._drafts.write(message))
            self._loop.after(self._delay_ms, lambda: self._live.on_draft(message))
        else:
            frame = pb.ClientFrame(ack=pb.Ack(committed=message.committed))
            self._loop.after(self._delay_ms, lambda: self._live.on_ack(message.committed))
        self.up_bytes += frame.ByteSize() + FRAME_OVERHEAD_BYTES

    def _send_down(self, verdict: Verdict) -> None:
        frame = pb.ServerFrame(verdict=self._verdicts.write(verdict))
        self.down_bytes += frame.ByteSize() + FRAME_OVERHEAD_BYTES
        self._loop.after(self._delay_ms, lambda: self._take_in(verdict))

    def _take_in(self, verdict: Verdict) -> None:
        self.tokens += len(self._device.on_verdict(verdict))
        self.arrivals_ms.append(self._loop.now_ms)


@dataclass(frozen=True, slots=True)
class ServedCrowd:
    """What a crowd got.

    Args:
        rates: tokens a second of each user.
        gaps_ms: between arrivals of one user's tokens, over all users, ascending.
        up_bytes_a_s, down_bytes_a_s: of a user's frames, without memory rows; mean.
    """

    rates: list[float]
    gaps_ms: list[float]
    up_bytes_a_s: float
    down_bytes_a_s: float

    @property
    def gap_p95_ms(self) -> float:
        """The gap that one in twenty exceeds."""
        return self.gaps_ms[int(0.95 * (len(self.gaps_ms) - 1))]


def serve_crowd(
    users: int, way: CrowdWay, costs: ForwardCosts, *, seed: int = 0, rounds: int = ROUNDS, knows_costs: bool = False
) -> ServedCrowd:
    """Serves so many users for some forwards.

    Args:
        knows_costs: the server has served such a load before.

    Raises:
        InternalError: answers were too short for it.
    """
    loop = EventLoop()
    server = SimulatedServer(loop, costs, own_drafts=way.own_drafts, measured=knows_costs)
    if knows_costs:
        server.learn_costs(users)
    crowd = [_User(loop, server, way, seed * users + number) for number in range(users)]
    forwards = max(1, users // MOST_ROWS)  # in which everybody steps once
    loop.run(lambda: server.forwards >= SETTLE_ROUNDS * forwards)
    began_ms, before = loop.now_ms, [user.tokens for user in crowd]
    up, down = sum(user.up_bytes for user in crowd), sum(user.down_bytes for user in crowd)
    loop.run(lambda: server.forwards >= (SETTLE_ROUNDS + rounds) * forwards)
    if max(user.tokens for user in crowd) >= LONGEST:
        raise InternalError("A simulated answer ended before rates were taken.")
    seconds = (loop.now_ms - began_ms) / 1e3
    rates = [(user.tokens - earlier) / seconds for user, earlier in zip(crowd, before, strict=True)]
    gaps_ms = sorted(later - at for user in crowd for at, later in pairwise(user.arrivals_ms) if at >= began_ms)
    up, down = sum(user.up_bytes for user in crowd) - up, sum(user.down_bytes for user in crowd) - down
    return ServedCrowd(rates, gaps_ms, up / seconds / users, down / seconds / users)
