"""How many users a world's GPUs serve at a speed, by each way to draft; a crowd is simulated by a few of its users."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from moa_bench.simulation.server import ForwardCosts
from moa_bench.suites.scale.assumptions import World
from moa_bench.suites.scale.crowd import CrowdWay, GpuCosts, serve_crowd
from moa_bench.suites.scale.figures import Load, Way

# Users; each stands for so many that their number is the crowd's: 24 for 200 are within 2 % of the 200, 8 are 12 % off.
SIMULATED = 24
LONGEST_DRAFT = 12
BYTES, FLOPS = 2, 2  # of a weight in bf16; of a weight for each row


def gpu_costs(world: World) -> GpuCosts:
    """A forward: reading and computing, spread over the GPUs, and what comes on top."""
    gpu, target = world.gpu, world.target
    bytes_a_ms = gpu.bandwidth * world.bandwidth_share * world.gpus / 1e3
    flops_a_ms = gpu.flops * world.flops_share * world.gpus / 1e3
    drafter = target.drafter + target.head
    reduced_ms = 2 * target.layers * world.all_reduce_us / 1e3 if world.gpus > 1 else 0.0
    return GpuCosts(
        weights_ms=target.weights * BYTES / bytes_a_ms,
        context_ms=target.kv * world.context / bytes_a_ms,
        row_ms=target.weights * FLOPS / flops_a_ms,
        launch_ms=world.launch_ms + reduced_ms,
        drafter_ms=world.draft_launch_ms + drafter * BYTES / bytes_a_ms,
        drafter_row_ms=drafter * FLOPS / flops_a_ms,
    )


def device_draft_ms(world: World) -> float:
    """A draft step of a device: it reads the drafter and the head."""
    nbytes = (world.target.drafter + world.target.head) * world.device_bytes
    return world.device_launch_ms + 1e3 * nbytes / (world.device.bandwidth * world.device_share)


def fit(world: World, way: Way) -> int:
    """Users whose keys and values the GPUs hold together, beside the target, and its drafter if that is there."""
    target = world.target
    drafter = target.drafter if way in ("co-located", "auto") else 0.0  # the head is the target's
    room = world.gpu.memory * world.memory_share * world.gpus - (target.weights + drafter) * BYTES
    return max(0, int(room // (target.kv * world.context)))


@dataclass(frozen=True, slots=True)
class Represented:
    """Costs of a crowd of which few are simulated, each for `weight` users who step together.

    The price of a row in tokens is the same for the few as for the crowd: the rate of tokens is `weight` times lower,
    and a row takes as much longer.
    """

    costs: ForwardCosts
    weight: float

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        return self.costs.forward_ms(nodes * self.weight, answers * self.weight)

    def own_draft_ms(self, answers: float) -> float:
        return self.costs.own_draft_ms(answers * self.weight)


def serve(world: World, way: Way, users: int, *, seed: int = 0) -> Load:
    few = min(users, SIMULATED)
    crowd_way = make_way(world, way, users)
    costs = Represented(gpu_costs(world), users / few)
    served = serve_crowd(few, crowd_way, costs, seed=seed, knows_costs=True)
    rate = fmean(served.rates)
    memory = world.target.memory_row * rate if crowd_way.devices_draft else 0.0
    return Load(users, rate, served.up_bytes_a_s * 8 / 1e3, (served.down_bytes_a_s + memory) * 8 / 1e3)


def make_way(world: World, way: Way, users: int) -> CrowdWay:
    """The way with its best length of drafts for so many users."""
    acceptance, one_way_ms = world.acceptance, world.one_way_ms
    draft_ms = device_draft_ms(world)
    if way == "plain":
        return CrowdWay(one_way_ms=one_way_ms)
    if way == "co-located":
        return CrowdWay(acceptance, own_drafts=best_length(world, users, colocated=True), one_way_ms=one_way_ms)
    rounds = best_length(world, users, colocated=False) if way == "synchronous" else 0
    return CrowdWay(acceptance, draft_ms=draft_ms, one_way_ms=one_way_ms, rounds=rounds, auto=way == "auto")


def best_length(world: World, users: int, *, colocated: bool) -> int:
    """The length of drafts that arithmetic finds fastest where each waits for its own draft; at least 1."""
    costs, acceptance = gpu_costs(world), world.acceptance
    away_ms = 0.0 if colocated else 2 * world.one_way_ms
    step_ms = costs.own_draft_ms(users) if colocated else device_draft_ms(world)

    def rate(length: int) -> float:
        took_ms = away_ms + length * step_ms + costs.forward_ms(users * length, users)
        return sum(acceptance**place for place in range(length + 1)) / took_ms  # its mean tokens, the bonus included

    return max(range(1, LONGEST_DRAFT + 1), key=rate)


def loads(world: World, way: Way, numbers: Sequence[int], *, slowest: float = 0.0) -> list[Load]:
    """Simulates numbers of users, ascending, until they are too slow."""
    found: list[Load] = []
    for users in numbers:
        found.append(serve(world, way, users))
        if found[-1].rate < slowest:
            break
    return found
