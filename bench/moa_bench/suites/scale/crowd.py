"""Many users of one simulated server at once: what each gets, by plain serving, devices' drafts or the server's own.

Virtual time, the server's own schedule and the client's own drafting. Prompts have been read; everybody's answer is
long, and rates are taken after a while, so that only the steady state counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moa_client.drafting.settings import DraftingSettings
from moa_server.engine.planning.schedule import MOST_ROWS
from moa_shared.errors import InternalError

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import ForwardCosts, SimulatedServer
from moa_bench.simulation.text import ScriptedText, by_chance
from moa_bench.simulation.user import SimulatedLink, SimulatedUser

LONGEST = 600  # tokens of an answer: more than anybody gets
SETTLE_ROUNDS, ROUNDS = 8, 16  # forwards before rates are taken, and while they are


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """A target on a GPU, by its arithmetic: a forward reads its bytes and computes its rows.

    On an H100 that takes the sum of both, not the longer (docs/measurements/scale.md).

    Args:
        drafter_ms, drafter_row_ms: a forward of a drafter on the same GPU, and of each further row.
    """

    weights_ms: float  # reading the target's weights
    context_ms: float  # one answer's keys and values
    row_ms: float  # computing a row
    launch_ms: float  # what a forward takes besides
    drafter_ms: float
    drafter_row_ms: float

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        return self.launch_ms + self.weights_ms + self.context_ms * answers + self.row_ms * (answers + nodes)

    def own_draft_ms(self, answers: float) -> float:
        return self.drafter_ms + self.drafter_row_ms * (answers - 1)


@dataclass(frozen=True, slots=True)
class CrowdWay:
    """How a crowd is served."""

    acceptance: float | None = None  # of drafts; None: none are made
    own_drafts: int = 0  # tokens that the server drafts for each answer before a forward; 0: devices draft
    draft_ms: float = 5.0  # of a device's draft step
    one_way_ms: float = 10.0  # delay of every user's link
    rounds: int = 0  # length of synchronous rounds; 0: drafts are streamed
    auto: bool = False  # the server drafts, as well as the devices, while that pays

    @property
    def devices_draft(self) -> bool:
        return self.acceptance is not None and not self.own_drafts

    @property
    def drafting(self) -> DraftingSettings | None:
        if not self.devices_draft:
            return None
        if self.rounds:
            return DraftingSettings("device", rounds=True, run_ahead=False)
        return DraftingSettings("auto" if self.auto else "device")


@dataclass(frozen=True, slots=True)
class ServedCrowd:
    """What a crowd got."""

    rates: list[float]  # tokens a second of each user
    up_bytes_a_s: float  # of a user's frames, without memory rows; mean
    down_bytes_a_s: float


def serve_crowd(
    users: int, way: CrowdWay, costs: ForwardCosts, *, seed: int = 0, knows_costs: bool = False
) -> ServedCrowd:
    """Serves so many users for some forwards.

    Args:
        knows_costs: the server has served such a load before.
    """
    loop = EventLoop()
    server = SimulatedServer(loop, costs, own_drafts=way.own_drafts, measured=knows_costs)
    if knows_costs:
        server.learn_costs(users)
    crowd = [_user(loop, server, way, seed * users + number) for number in range(users)]
    for user in crowd:
        user.ask(LONGEST)
    forwards = max(1, users // MOST_ROWS)  # in which everybody steps once
    loop.run(lambda: server.forwards >= SETTLE_ROUNDS * forwards)
    began_ms, before = loop.now_ms, [len(user.arrivals_ms) for user in crowd]
    up, down = _bytes(crowd)
    loop.run(lambda: server.forwards >= (SETTLE_ROUNDS + ROUNDS) * forwards)
    got = [len(user.arrivals_ms) for user in crowd]
    if max(got) >= LONGEST:
        raise InternalError("A simulated answer ended before rates were taken.")
    seconds = (loop.now_ms - began_ms) / 1e3
    rates = [(now - earlier) / seconds for now, earlier in zip(got, before, strict=True)]
    all_up, all_down = _bytes(crowd)
    return ServedCrowd(rates, (all_up - up) / seconds / users, (all_down - down) / seconds / users)


def _user(loop: EventLoop, server: SimulatedServer, way: CrowdWay, seed: int) -> SimulatedUser:
    return SimulatedUser(
        loop,
        server,
        ScriptedText(LONGEST, by_chance(way.acceptance or 0.0, seed)),
        SimulatedLink.of_delay(way.one_way_ms),
        way.drafting,
        way.draft_ms,
        seed=seed,
        round_length=way.rounds or 1,
        run_ahead=not way.rounds,
        own_acceptance=way.acceptance if way.auto else None,
    )


def _bytes(crowd: Sequence[SimulatedUser]) -> tuple[int, int]:
    """Of all frames so far, up and down."""
    return sum(user.up.bytes for user in crowd), sum(user.down.bytes for user in crowd)
