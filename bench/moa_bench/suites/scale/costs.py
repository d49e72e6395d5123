"""What forwards and draft steps take and how many users fit, from a world's assumptions. Pure."""

from dataclasses import dataclass

from moa_bench.simulation.server import ForwardCosts
from moa_bench.suites.scale.assumptions import World
from moa_bench.suites.scale.crowd import GpuCosts

BYTES, FLOPS = 2, 2  # of a weight in bf16; of a weight for each row


def gpu_costs(world: World) -> GpuCosts:
    """A forward: the longer of reading and computing, spread over the GPUs, and what comes on top."""
    gpu, target = world.gpu, world.target
    bytes_a_ms = gpu.bandwidth.value * world.bandwidth_share.value * world.gpus / 1e3
    flops_a_ms = gpu.flops.value * world.flops_share.value * world.gpus / 1e3
    drafter = target.drafter.value + target.head.value
    reduced_ms = 2 * target.layers.value * world.all_reduce_us.value / 1e3 if world.gpus > 1 else 0.0
    return GpuCosts(
        weights_ms=target.weights.value * BYTES / bytes_a_ms,
        context_ms=target.kv.value * world.context.value / bytes_a_ms,
        row_ms=target.weights.value * FLOPS / flops_a_ms,
        launch_ms=world.launch_ms.value + reduced_ms,
        drafter_ms=world.draft_launch_ms.value + drafter * BYTES / bytes_a_ms,
        drafter_row_ms=drafter * FLOPS / flops_a_ms,
    )


def device_draft_ms(world: World) -> float:
    """A draft step of a device: it reads the drafter and the head."""
    nbytes = (world.target.drafter.value + world.target.head.value) * world.device_bytes.value
    return world.device_launch_ms.value + 1e3 * nbytes / (world.device.bandwidth.value * world.device_share.value)


def users_that_fit(world: World, *, drafter: bool) -> int:
    """Whose keys and values the GPUs hold together, beside the target, and its drafter if that is there."""
    target = world.target
    weights = target.weights.value + (target.drafter.value if drafter else 0.0)  # the head is the target's
    room = world.gpu.memory.value * world.memory_share.value * world.gpus - weights * BYTES
    return max(0, int(room // (target.kv.value * world.context.value)))


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
