"""Every number that the scale suite takes in: `assumptions.csv` has its value, its unit and where it comes from.

A figure is published by a maker or a paper, measured here, derived from such, or assumed: nobody's.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_suffix(".csv")
OF_ALL = "all"
CASES = (
    ("Llama-3-8B", "A100 80 GB", 1, "phone"),
    ("Llama-3-8B", "H100 80 GB", 1, "phone"),
    ("Llama-3-8B", "H100 80 GB", 1, "laptop"),
    ("Llama-3-70B", "A100 80 GB", 4, "laptop"),
    ("Llama-3-70B", "H100 80 GB", 4, "phone"),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU."""

    name: str
    bandwidth: float  # bytes a second
    flops: float  # bf16, dense, a second
    memory: float  # bytes
    price: float  # dollars an hour


@dataclass(frozen=True, slots=True)
class TargetSize:
    """A target and its drafter."""

    name: str
    weights: float
    kv: float  # bytes a token
    layers: float  # each is two all-reduces with tensor parallelism
    drafter: float  # its weights
    head: float  # weights of the target's head, which the drafter reads too
    memory_row: float  # bytes that follow a token to a device


@dataclass(frozen=True, slots=True)
class DraftDevice:
    """What a user drafts on."""

    name: str
    bandwidth: float  # bytes a second


@dataclass(frozen=True, slots=True)
class World:
    """All that a case assumes, in the units of `assumptions.csv`."""

    target: TargetSize
    gpu: Gpu
    gpus: int
    device: DraftDevice
    acceptance: float
    context: float
    one_way_ms: float
    bandwidth_share: float
    flops_share: float
    memory_share: float
    launch_ms: float
    draft_launch_ms: float
    all_reduce_us: float
    device_share: float
    device_bytes: float
    device_launch_ms: float

    @property
    def name(self) -> str:
        gpus = f"{self.gpus} x {self.gpu.name}" if self.gpus > 1 else self.gpu.name
        return f"{self.target.name}, {gpus}, {self.device.name}"


def all_worlds() -> list[World]:
    return [
        World(
            TargetSize(target, **_values(target)),
            Gpu(gpu, **_values(gpu)),
            gpus,
            DraftDevice(device, **_values(device)),
            **_values(OF_ALL),
        )
        for target, gpu, gpus, device in CASES
    ]


def rows(worlds: Sequence[World]) -> list[list[str]]:
    """Each assumption of these cases: of what, which, how much, what kind of figure, whence."""
    parts = {part.name for world in worlds for part in (world.gpu, world.target, world.device)} | {OF_ALL}
    return [
        [each["of"], each["what"], f"{each['value']} {each['unit']}", each["kind"], each["source"]]
        for each in _table()
        if each["of"] in parts
    ]


def _table() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _values(of: str) -> dict[str, float]:
    return {each["what"].replace(" ", "_"): float(each["value"]) for each in _table() if each["of"] == of}
