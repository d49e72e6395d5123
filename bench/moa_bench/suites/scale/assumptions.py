"""Every number that the scale suite takes in, with its unit and where it comes from. Pure.

Invariant: no assumption without a source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from moa_shared.errors import ConfigError

Kind = Literal["published", "measured", "derived", "assumed"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A number and where it comes from.

    Args:
        kind: published by a maker or a paper; measured here; derived from such; assumed: nobody's figure.
        source: where it is written, or why it is assumed.

    Raises:
        ConfigError: no unit or no source is named, the kind is unknown, or the value is not positive.
    """

    value: float
    unit: str
    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if not self.source.strip() or not self.unit.strip():
            raise ConfigError("An assumption has no unit or no source.", hint="Say where the number comes from.")
        if self.kind not in get_args(Kind):
            raise ConfigError(f"An assumption is of the kind {self.kind!r}, expected one of {get_args(Kind)}.")
        if not self.value > 0:
            raise ConfigError(f"An assumption is {self.value} {self.unit}, expected more than 0.")

    def times(self, factor: float) -> Assumption:
        """The same, varied."""
        return replace(self, value=self.value * factor)


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
    """A target and its drafter.

    Args:
        drafter: weights of the drafter; `head`: of the target's head, which it reads too.
        layers: each is two all-reduces with tensor parallelism.
        memory_row: bytes that follow a token to a device.
    """

    name: str
    weights: Assumption
    kv: Assumption  # bytes a token
    layers: Assumption
    drafter: Assumption
    head: Assumption
    memory_row: Assumption


@dataclass(frozen=True, slots=True)
class DraftDevice:
    """What a user drafts on."""

    name: str
    bandwidth: Assumption  # bytes a second


@dataclass(frozen=True, slots=True)
class World:
    """All that a case assumes; a field is an assumption, or holds some."""

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

    def assumptions(self) -> dict[str, Assumption]:
        """Each by its name."""
        found: dict[str, Assumption] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Assumption):
                found[field.name] = value
            elif not isinstance(value, int):
                parts = ((inner.name, getattr(value, inner.name)) for inner in fields(value))
                found |= {f"{field.name}.{name}": part for name, part in parts if isinstance(part, Assumption)}
        return found

    def varied(self, name: str, factor: float) -> World:
        """With one assumption multiplied; chances are odds, so that they stay below 1.

        Raises:
            KeyError: no such assumption.
        """
        old = self.assumptions()[name]
        if old.unit == "of 1":
            odds = factor * old.value / (1 - old.value)
            factor = odds / (1 + odds) / old.value
        part, _, inner = name.partition(".")
        if inner:
            changed: Any = {part: replace(getattr(self, part), **{inner: old.times(factor)})}
        else:
            changed = {name: old.times(factor)}
        return replace(self, **changed)


def rows(worlds: list[World]) -> list[list[str]]:
    """Each assumption once: of what, which, how much, what kind of figure, whence."""
    found: dict[tuple[str, str, float], list[str]] = {}
    for world in worlds:
        for name, each in world.assumptions().items():
            part, _, inner = name.partition(".")
            owner = getattr(world, part).name if inner else "all"
            label = (inner or name).replace("_", " ")
            value = f"{each.value:,.4g}" if each.value < 1e5 else f"{each.value:.4g}"
            found[owner, label, each.value] = [owner, label, f"{value} {each.unit}", each.kind, each.source]
    return sorted(found.values(), key=lambda row: row[0] == "all")
