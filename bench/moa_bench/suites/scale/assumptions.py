"""Every number that the scale suite takes in, with its unit and where it comes from. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

Kind = Literal["published", "measured", "derived", "assumed"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A number and where it comes from."""

    value: float
    unit: str
    kind: Kind  # published by a maker or a paper; measured here; derived from such; assumed: nobody's figure
    source: str  # where it is written, or why it is assumed


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU."""

    name: str
    bandwidth: Assumption  # bytes a second
    flops: Assumption  # bf16, dense, a second
    memory: Assumption  # bytes
    price: Assumption  # dollars an hour


@dataclass(frozen=True, slots=True)
class TargetSize:
    """A target and its drafter."""

    name: str
    weights: Assumption
    kv: Assumption  # bytes a token
    layers: Assumption  # each is two all-reduces with tensor parallelism
    drafter: Assumption  # its weights
    head: Assumption  # weights of the target's head, which the drafter reads too
    memory_row: Assumption  # bytes that follow a token to a device


@dataclass(frozen=True, slots=True)
class DraftDevice:
    """What a user drafts on."""

    name: str
    bandwidth: Assumption  # bytes a second


@dataclass(frozen=True, slots=True)
class World:
    """All that a case assumes."""

    gpu: Gpu
    target: TargetSize
    device: DraftDevice
    gpus: int
    acceptance: Assumption
    context: Assumption
    one_way_ms: Assumption
    bandwidth_share: Assumption
    flops_share: Assumption
    memory_share: Assumption
    launch_ms: Assumption
    draft_launch_ms: Assumption
    all_reduce_us: Assumption
    device_share: Assumption
    device_bytes: Assumption
    device_launch_ms: Assumption

    @property
    def name(self) -> str:
        gpus = f"{self.gpus} x {self.gpu.name}" if self.gpus > 1 else self.gpu.name
        return f"{self.target.name}, {gpus}, {self.device.name}"


def rows(worlds: Sequence[World]) -> list[list[str]]:
    """Each assumption once: of what, which, how much, what kind of figure, whence."""
    found: dict[tuple[str, str, float], list[str]] = {}
    for world in worlds:
        for part in (world.gpu, world.target, world.device, world):
            owner = "all" if part is world else part.name
            for field in fields(part):
                each = getattr(part, field.name)
                if isinstance(each, Assumption):
                    label = field.name.replace("_", " ")
                    value = f"{each.value:,.4g}" if each.value < 1e5 else f"{each.value:.4g}"
                    line = [owner, label, f"{value} {each.unit}", each.kind, each.source]
                    found[owner, label, each.value] = line
    return sorted(found.values(), key=lambda row: row[0] == "all")
