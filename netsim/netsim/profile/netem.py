"""Prints the tc commands that give a kernel with netem a profile's conditions, and says where they differ from ours."""

from __future__ import annotations

import math

from netsim.core.conditions import Bernoulli, Conditions, Truncation
from netsim.core.link import Direction
from netsim.profile.profiles import Profile

MEAN_PACKET_BYTES = 1500  # netem's queue limit counts packets


def tc_commands(profile: Profile, device: str, direction: Direction) -> list[str]:
    """Shell lines; those that begin with # say what netem cannot do."""
    conditions = profile.conditions(direction)
    lines = [f"# {profile.name}, {direction}: on the device that sends this way"]
    lines += [f"# {note}" for note in _notes(profile, conditions)]
    lines.append(f"tc qdisc replace dev {device} root netem {' '.join(_arguments(conditions))}")
    return lines


def _arguments(conditions: Conditions) -> list[str]:
    delay, loss = conditions.delay, conditions.loss
    words = ["limit", str(_limit_packets(conditions))]
    moments = delay.effective()
    if moments.mean_ms > 0.0:
        words += ["delay", f"{moments.mean_ms:.3f}ms"]
        if moments.deviation_ms > 0.0:
            words += [f"{moments.deviation_ms:.3f}ms", "distribution", "normal"]
    if isinstance(loss, Bernoulli):
        if loss.probability > 0.0:
            words += ["loss", f"{loss.probability * 100:.4g}%"]
    else:
        # p, r, 1-h, 1-k of tc-netem(8): loss in the bad state, then in the good one.
        numbers = (loss.enter_bad, loss.leave_bad, loss.loss_bad, loss.loss_good)
        words += ["loss", "gemodel", *(f"{number * 100:.4g}%" for number in numbers)]
    if math.isfinite(conditions.rate_bps):
        words += ["rate", f"{conditions.rate_bps / 1e3:.0f}kbit"]
    return words


def _limit_packets(conditions: Conditions) -> int:
    """netem's queue also holds what is in the air, so that is added to ours."""
    in_air = 0.0
    moments = conditions.delay.effective()
    if math.isfinite(conditions.rate_bps):
        in_air = conditions.rate_bps / 8.0 * (moments.mean_ms + 4.0 * moments.deviation_ms) * 1e-3
    else:
        in_air = 1e9 / 8.0 * moments.mean_ms * 1e-3
    return max(1, round((conditions.queue_bytes + in_air) / MEAN_PACKET_BYTES))


def _notes(profile: Profile, conditions: Conditions) -> list[str]:
    notes = []
    delay = conditions.delay
    if delay.deviation_ms > 0.0:
        notes.append(
            "netem draws each packet's delay by itself and sets draws below 0 to 0, so packets overtake each other; "
            f"mean and deviation below are the effective ones ({delay.truncation} here)."
        )
        if delay.truncation is not Truncation.CLAMP:
            notes.append("Its normal is not cut at 0 in the same way: the shape near 0 differs.")
        if delay.correlation_ms > 0.0:
            notes.append("Correlation in time is left out: netem's correlation counts packets, not ms.")
    if conditions.burst_bytes:
        notes.append("The burst is left out: netem's rate has none (tbf has).")
    if profile.timeline:
        notes.append("The timeline is left out: run tc again at each event.")
    return notes
