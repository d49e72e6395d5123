"""Profiles: the description of a link that a user writes in YAML or TOML.

Validated with pydantic; `conditions()` turns a profile into the values that the core works with. The
field descriptions below are the reference that `netsim show --fields` prints.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from netsim.core.conditions import KIB, Bernoulli, Conditions, DelaySpec, GilbertElliott, Truncation
from netsim.core.link import Direction
from netsim.core.timeline import BOTH, DIRECTED, LASTING, Event, EventKind
from netsim.errors import EventError, ProfileError

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DelayFields(_Strict):
    """Normal distribution kept above zero, correlated in time unless `correlation_ms` is 0."""

    mean_ms: float = Field(ge=0.0, description="Centre of the normal distribution, before truncation")
    deviation_ms: float = Field(0.0, ge=0.0, description="Its standard deviation, before truncation")
    truncation: Truncation = Field(
        Truncation.REJECT,
        description="What becomes of draws below 0: `reject` draws again, `clamp` makes them 0, `preserve_mean` draws "
        "again from a parent whose centre keeps the stated mean",
    )
    correlation_ms: float = Field(
        50.0, ge=0.0, description="Time constant of the Ornstein-Uhlenbeck process; 0 draws for each packet alone"
    )


class BernoulliFields(_Strict):
    """Independent losses."""

    model: Literal["bernoulli"] = Field("bernoulli", description="Independent losses")
    probability: Probability = Field(description="Share of packets lost")


class GilbertElliottFields(_Strict):
    """Losses in bursts."""

    model: Literal["gilbert_elliott"] = Field(description="Losses in bursts")
    enter_bad: float = Field(gt=0.0, le=1.0, description="Probability a packet of going from good to bad")
    leave_bad: float = Field(gt=0.0, le=1.0, description="Probability a packet of going back")
    loss_good: Probability = Field(0.0, description="Share lost in the good state")
    loss_bad: Probability = Field(1.0, description="Share lost in the bad state")


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

    rate_mbps: float | None = Field(None, gt=0.0, description="As above, for this direction")
    delay: DelayFields | None = Field(None, description="As above, for this direction")
    loss: LossFields | None = Field(None, description="As above, for this direction")
    queue_kib: float | None = Field(None, ge=4.0, description="As above, for this direction")
    burst_kib: float | None = Field(None, ge=0.0, description="As above, for this direction")


class EventFields(_Strict):
    """One event of the timeline."""

    at_s: float = Field(ge=0.0, description="Seconds after the start of the run")
    kind: EventKind = Field(description="`blackhole`, `hold`, `reset`, `fin`, `refuse` or `change`")
    duration_s: float = Field(0.0, ge=0.0, description="How long a blackhole, hold or refusal lasts")
    direction: Literal["up", "down", "both"] = Field("both", description="Of a blackhole or a hold")
    profile: str | None = Field(None, description="Of a change: the profile that the link becomes")
    ramp_s: float = Field(0.0, ge=0.0, description="Of a change: how long it takes")

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
        """The core's value."""
        directions = BOTH if self.direction == "both" else (Direction(self.direction),)
        return Event(self.at_s, self.kind, self.duration_s or self.ramp_s, directions, self.profile)


class Profile(_Strict):
    """A link. Both directions are alike unless `up` or `down` says otherwise."""

    version: Literal[1] = Field(description="Version of this format")
    name: str = Field(min_length=1, description="Name by which the profile is asked for")
    description: str = Field(
        min_length=1, description="One sentence: what link this is, and where the numbers are from"
    )
    basis: Literal["one_way", "rtt"] = Field(
        description="What `delay` describes: each direction (`one_way`), or the round trip (`rtt`), of which each "
        "direction then gets half of a draw of its own"
    )
    delay: DelayFields = Field(description="Delay of packets, without queueing")
    rate_mbps: float | None = Field(None, gt=0.0, description="Rate limit, counting whole packets; none if left out")
    loss: LossFields = Field(BernoulliFields(probability=0.0), description="Packets lost in the air")
    queue_kib: float = Field(256.0, ge=4.0, description="Drop-tail queue before the rate limit")
    burst_kib: float = Field(0.0, ge=0.0, description="What an idle link lets through at once, above the rate")
    up: DirectionFields = Field(
        default_factory=lambda: DirectionFields.model_validate({}), description="Client to server, where different"
    )
    down: DirectionFields = Field(
        default_factory=lambda: DirectionFields.model_validate({}), description="Server to client, where different"
    )
    congestion: Literal["cubic", "reno", "bbr"] = Field(
        "cubic", description="Congestion control of the kernel's TCP over the tun backend; the proxy models cubic"
    )
    timeline: tuple[EventFields, ...] = Field((), description="Events, in any order")

    def conditions(self, direction: Direction) -> Conditions:
        """What the core needs to know about one direction."""
        own = self.up if direction is Direction.UP else self.down
        delay, loss = own.delay or self.delay, own.loss or self.loss
        rate_mbps = own.rate_mbps or self.rate_mbps
        queue_kib = self.queue_kib if own.queue_kib is None else own.queue_kib
        burst_kib = self.burst_kib if own.burst_kib is None else own.burst_kib
        return Conditions(
            rate_bps=math.inf if rate_mbps is None else rate_mbps * 1e6,
            delay=DelaySpec(
                mean_ms=delay.mean_ms,
                deviation_ms=delay.deviation_ms,
                truncation=delay.truncation,
                correlation_ms=delay.correlation_ms,
                scale=0.5 if self.basis == "rtt" else 1.0,
            ),
            loss=Bernoulli(loss.probability)
            if isinstance(loss, BernoulliFields)
            else GilbertElliott(loss.enter_bad, loss.leave_bad, loss.loss_good, loss.loss_bad),
            queue_bytes=round(queue_kib * KIB),
            burst_bytes=round(burst_kib * KIB),
        )

    def events(self) -> list[Event]:
        """The timeline, as the core's values."""
        return [fields.event() for fields in self.timeline]

    def document(self) -> dict[str, Any]:
        """The profile as plain values, without the fields that were left out."""
        return self.model_dump(mode="json", exclude_unset=True)


SUFFIXES = (".yaml", ".yml", ".toml")
_FOLDER = files("netsim.profile") / "profiles"


@cache
def names() -> tuple[str, ...]:
    """Names of the profiles that come with netsim, sorted."""
    return tuple(sorted(Path(entry.name).stem for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml")))


def load(name: str) -> Profile:
    """The profile of that name, or in that file; raises ProfileError."""
    if name in names():
        return parse((_FOLDER / f"{name}.yaml").read_text(), name)
    if name.endswith(SUFFIXES) or "/" in name:
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise ProfileError(f"Profile {name} cannot be read: {why}.") from error
        return parse(text, name)
    near = get_close_matches(name.lower(), names(), n=3, cutoff=0.4)
    offer = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names())}."
    raise ProfileError(
        f"There is no profile {name!r}.",
        hint=f"{offer} A profile of your own is given by its file, for example ./my.yaml.",
    )


def parse(text: str, source: str) -> Profile:
    """Reads YAML, or TOML if `source` ends in .toml; raises ProfileError with field and reason."""
    try:
        document: Any = tomllib.loads(text) if source.endswith(".toml") else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ProfileError(f"Profile {source} cannot be parsed: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ProfileError(f"Profile {source} holds no fields.", hint="`netsim show 4g` prints one to start from.")
    if "basis" not in document:
        raise ProfileError(
            f"Profile {source} does not say its basis.",
            hint="Add `basis: one_way` if the delay is that of each direction, `basis: rtt` if it is the round trip's.",
        )
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'profile'}: {item['msg']}" for item in error.errors()
        )
        raise ProfileError(
            f"Profile {source} is not valid: {problems}.", hint="`netsim show --fields` describes every field."
        ) from error


SETTINGS = ("rate_mbps", "delay_ms", "deviation_ms", "loss", "queue_kib")


def parse_settings(words: tuple[str, ...]) -> dict[str, float]:
    """Reads NAME=NUMBER words; `rate_mbps=none` lifts the limit. Raises EventError."""
    settings: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            value = math.inf if name == "rate_mbps" and text == "none" else float(text)
        except ValueError:
            value = math.nan
        if name not in SETTINGS:
            raise EventError(
                f"There is no setting {name!r}.", hint=f"Settings are {', '.join(SETTINGS)}; write rate_mbps=5."
            )
        check_setting(name, value)
        settings[name] = value
    return settings


def check_setting(name: str, value: float) -> None:
    """Raises EventError if the value is outside what the setting may be."""
    high = 1.0 if name == "loss" else math.inf
    low = 4.0 if name == "queue_kib" else 0.0
    if not low <= value <= high or (math.isinf(value) and name != "rate_mbps"):
        limits = f"between {low:g} and {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise EventError(f"{name} must be a number {limits}.")


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
