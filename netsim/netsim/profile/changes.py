"""Changes of single values of a running link: reads words such as `rate_mbps=5` and applies them to conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from netsim.core.conditions import KIB, Conditions
from netsim.core.loss import Bernoulli
from netsim.errors import EventError

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
