"""Profiles, the description of a link that a user writes in YAML or TOML (docs/netsim.md), and what a run makes of one.

Validated with pydantic; `conditions()` turns a profile into the values that the core works with. A `Scenario` is a
profile with a seed, perhaps a trace, and events; it builds both directions' link models.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from netsim.core.conditions import KIB, Bernoulli, Conditions, ConditionSchedule, DelaySpec, GilbertElliott, Truncation
from netsim.core.link import Direction, LinkModel, Observer
from netsim.errors import UsageError
from netsim.traces import DIRECTED, LASTING, Event, EventKind, Trace, parse_directions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DelayFields(_Strict):
    mean_ms: float = Field(ge=0.0)
    deviation_ms: float = Field(0.0, ge=0.0)
    truncation: Truncation = Truncation.REJECT
    correlation_ms: float = Field(50.0, ge=0.0)


class BernoulliFields(_Strict):
    model: Literal["bernoulli"] = "bernoulli"
    probability: Probability


class GilbertElliottFields(_Strict):
    model: Literal["gilbert_elliott"]
    enter_bad: float = Field(gt=0.0, le=1.0)
    leave_bad: float = Field(gt=0.0, le=1.0)
    loss_good: Probability = 0.0
    loss_bad: Probability = 1.0


def _loss_model(loss: Any) -> Any:
    return loss.get("model", "bernoulli") if isinstance(loss, dict) else getattr(loss, "model", None)


LossFields = Annotated[
    Annotated[BernoulliFields, Tag("bernoulli")] | Annotated[GilbertElliottFields, Tag("gilbert_elliott")],
    Discriminator(
        _loss_model,
        custom_error_type="loss_model",
        custom_error_message="the model is 'bernoulli' (the default) or 'gilbert_elliott'",
    ),
]


class DirectionFields(_Strict):
    """What `up` or `down` may say differently from the profile."""

    rate_mbps: float | None = Field(None, gt=0.0)
    delay: DelayFields | None = None
    loss: LossFields | None = None
    queue_kib: float | None = Field(None, ge=4.0)
    burst_kib: float | None = Field(None, ge=0.0)


class EventFields(_Strict):
    at_s: float = Field(ge=0.0)
    kind: EventKind
    duration_s: float = Field(0.0, ge=0.0)
    direction: Literal["up", "down", "both"] = "both"
    profile: str | None = None
    ramp_s: float = Field(0.0, ge=0.0)

    @model_validator(mode="after")
    def _consistent(self) -> EventFields:
        if (self.kind is EventKind.CHANGE) != (self.profile is not None):
            raise ValueError("a change, and only a change, names a profile")
        if self.kind in LASTING and self.duration_s == 0.0:
            raise ValueError(f"a {self.kind} needs duration_s above 0")
        if self.kind not in LASTING and self.duration_s > 0.0:
            raise ValueError(f"a {self.kind} has no duration_s")
        if self.kind not in DIRECTED and self.direction != "both":
            raise ValueError(f"a {self.kind} has no direction")
        if self.kind is not EventKind.CHANGE and self.ramp_s > 0.0:
            raise ValueError("only a change has a ramp")
        return self

    def event(self) -> Event:
        directions = parse_directions(self.direction)
        return Event(self.at_s, self.kind, self.duration_s or self.ramp_s, directions, self.profile)


class Profile(_Strict):
    """A link. Both directions are alike unless `up` or `down` says otherwise."""

    version: Literal[1]
    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    basis: Literal["one_way", "rtt"]
    delay: DelayFields
    rate_mbps: float | None = Field(None, gt=0.0)
    loss: LossFields = BernoulliFields(probability=0.0)
    queue_kib: float = Field(256.0, ge=4.0)
    burst_kib: float = Field(0.0, ge=0.0)
    up: DirectionFields = DirectionFields()
    down: DirectionFields = DirectionFields()
    congestion: Literal["cubic", "reno", "bbr"] = "cubic"
    timeline: tuple[EventFields, ...] = ()

    def conditions(self, direction: Direction) -> Conditions:
        own = self.up if direction is Direction.UP else self.down
        delay, loss = own.delay or self.delay, own.loss or self.loss
        rate_mbps = own.rate_mbps or self.rate_mbps
        kind = Bernoulli if isinstance(loss, BernoulliFields) else GilbertElliott
        return Conditions(
            rate_bps=math.inf if rate_mbps is None else rate_mbps * 1e6,
            delay=DelaySpec(**dict(delay), scale=0.5 if self.basis == "rtt" else 1.0),
            loss=kind(**loss.model_dump(exclude={"model"})),
            queue_bytes=round((self.queue_kib if own.queue_kib is None else own.queue_kib) * KIB),
            burst_bytes=round((self.burst_kib if own.burst_kib is None else own.burst_kib) * KIB),
        )

    def document(self) -> dict[str, Any]:
        """The profile as plain values, without the fields that were left out."""
        return self.model_dump(mode="json", exclude_unset=True)


_FOLDER = files("netsim") / "presets"


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(Path(entry.name).stem for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml")))


def load(name: str) -> Profile:
    """The profile of that name, or in that file; raises UsageError."""
    if name in names():
        return parse((_FOLDER / f"{name}.yaml").read_text(), name)
    if name.endswith((".yaml", ".yml", ".toml")) or "/" in name:
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise UsageError(f"Profile {name} cannot be read: {why}.") from error
        return parse(text, name)
    near = get_close_matches(name.lower(), names(), n=3, cutoff=0.4)
    offer = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names())}."
    raise UsageError(
        f"There is no profile {name!r}.",
        hint=f"{offer} A profile of your own is given by its file, for example ./my.yaml.",
    )


def parse(text: str, source: str) -> Profile:
    """Reads YAML, or TOML if `source` ends in .toml; raises UsageError with field and reason."""
    try:
        document: Any = tomllib.loads(text) if source.endswith(".toml") else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"Profile {source} cannot be parsed: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise UsageError(f"Profile {source} holds no fields.", hint="`netsim show 4g` prints one to start from.")
    if "basis" not in document:
        raise UsageError(
            f"Profile {source} does not say its basis.",
            hint="Add `basis: one_way` if the delay is that of each direction, `basis: rtt` if it is the round trip's.",
        )
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'profile'}: {item['msg']}" for item in error.errors()
        )
        raise UsageError(
            f"Profile {source} is not valid: {problems}.", hint="docs/netsim.md describes every field."
        ) from error


SETTINGS = ("rate_mbps", "delay_ms", "deviation_ms", "loss", "queue_kib")


def parse_settings(words: tuple[str, ...]) -> dict[str, float]:
    """Reads NAME=NUMBER words; `rate_mbps=none` lifts the limit. Raises UsageError."""
    settings: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            settings[name] = math.inf if name == "rate_mbps" and text == "none" else float(text)
        except ValueError:
            settings[name] = math.nan
        check_setting(name, settings[name])
    return settings


def check_setting(name: str, value: float) -> None:
    """Raises UsageError if there is no such setting, or the value is outside what it may be."""
    if name not in SETTINGS:
        hint = f"Settings are {', '.join(SETTINGS)}; write rate_mbps=5."
        raise UsageError(f"There is no setting {name!r}.", hint=hint)
    high = 1.0 if name == "loss" else math.inf
    low = 4.0 if name == "queue_kib" else 0.0
    if not low <= value <= high or (math.isinf(value) and name != "rate_mbps"):
        limits = f"between {low:g} and {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise UsageError(f"{name} must be a number {limits}.")


def change_of(settings: Mapping[str, float]) -> Callable[[Conditions], Conditions]:
    """The change of conditions that the settings mean; delays are those of each direction."""

    def change(conditions: Conditions) -> Conditions:
        delay = conditions.delay
        if "delay_ms" in settings or "deviation_ms" in settings:
            mean = settings.get("delay_ms", delay.mean_ms * delay.scale)
            deviation = settings.get("deviation_ms", delay.deviation_ms * delay.scale)
            delay = replace(delay, mean_ms=mean, deviation_ms=deviation, scale=1.0)
        return replace(
            conditions,
            delay=delay,
            rate_bps=settings["rate_mbps"] * 1e6 if "rate_mbps" in settings else conditions.rate_bps,
            loss=Bernoulli(settings["loss"]) if "loss" in settings else conditions.loss,
            queue_bytes=round(settings["queue_kib"] * KIB) if "queue_kib" in settings else conditions.queue_bytes,
        )

    return change


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run's input. With `loop` the trace starts again when it ends; otherwise its last row stays."""

    profile: Profile
    seed: int = 0
    trace: Trace | None = None
    loop: bool = False
    extra_events: tuple[Event, ...] = ()

    def events(self) -> list[Event]:
        own = [*(fields.event() for fields in self.profile.timeline), *self.extra_events]
        if self.trace is not None and (traced := self.trace.events):
            # A day of repetitions: longer than any run, short enough to hold.
            cycles = max(1, int(86_400 / self.trace.duration_s)) if self.loop else 1
            own += [
                replace(event, at_s=event.at_s + cycle * self.trace.duration_s)
                for cycle in range(cycles)
                for event in traced
            ]
        return sorted(own, key=lambda event: event.at_s)

    def models(self, observer: Observer | None = None) -> dict[Direction, LinkModel]:
        """A fresh link, with every event that is known beforehand already in its schedules."""
        links = {
            direction: LinkModel(self._schedule(direction), self.seed, direction, observer) for direction in Direction
        }
        for event in self.events():
            plan(event, links)
        return links

    def _schedule(self, direction: Direction) -> ConditionSchedule:
        base, trace = self.profile.conditions(direction), self.trace
        if trace is None:
            return ConditionSchedule([(0.0, base)])
        return ConditionSchedule(trace.points(direction, base), period_s=trace.duration_s if self.loop else None)


def plan(event: Event, links: dict[Direction, LinkModel]) -> None:
    """Enters an event into the schedules; the kinds that act on connections leave no mark there."""
    for direction in event.directions:
        schedule = links[direction].schedule
        if event.kind is EventKind.BLACKHOLE:
            schedule.blackhole(event.at_s, event.end_s)
        elif event.kind is EventKind.HOLD:
            schedule.hold(event.at_s, event.end_s)
        elif event.kind is EventKind.CHANGE and event.profile is not None:
            schedule.replace(event.at_s, load(event.profile).conditions(direction), event.duration_s)
