"""A scenario as its clients saw it: tokens a second from each replica over time, and who waited when."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from moa_bench.report.pictures import new_pyplot, save

if TYPE_CHECKING:
    from moa_bench.fleet.outcome import Timeline

SMOOTH_BINS = 4
COLOURS = {"kill": "#c0392b", "drain": "#888888", "join": "#2e8b57", "leave": "#888888", "cut": "#c0392b"}


def smoothed(rates: list[float], bins: int = SMOOTH_BINS) -> list[float]:
    """Means over so many bins up to each."""
    sums = [0.0, *accumulate(rates)]
    return [(sums[end] - sums[max(0, end - bins)]) / (end - max(0, end - bins)) for end in range(1, len(rates) + 1)]


def draw(timeline: Timeline, title: str, path: Path) -> Path:
    """Draws into a PNG file, and gives it back.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, (rates, waits) = pyplot.subplots(
        2, 1, figsize=(12, 6), sharex=True, layout="constrained", height_ratios=(3, 2)
    )
    addresses = list(timeline.tokens_per_s)
    length = len(timeline.tokens_per_s[addresses[0]])
    times = [timeline.bin_s * (number + 1) for number in range(length)]
    rates.stackplot(
        times,
        *(smoothed(timeline.tokens_per_s[address]) for address in addresses),
        labels=[f"replica {number}" for number in range(1, len(addresses) + 1)],
        colors=["#2a78b5", "#e8a33d", "#6b4fa0", "#4c9f70"][: len(addresses)],
        alpha=0.85,
    )
    rates.set(ylabel="tokens a second, all clients", title=title)
    rates.title.set_fontsize(10)
    seen = set()
    for incident in timeline.incidents:
        label = None if incident.what in seen else incident.what
        seen.add(incident.what)
        for panel in (rates, waits):
            panel.axvspan(
                incident.down_s, incident.up_s, color=COLOURS[incident.what], alpha=0.18, linewidth=0,
                label=label if panel is rates else None,
            )  # fmt: skip
    for client, from_s, to_s in timeline.stalls:
        waits.plot([from_s, to_s], [client + 1, client + 1], color="#c0392b", linewidth=2)
    waits.set(xlabel="seconds", ylabel="client", title="waits for text of a second or more")
    waits.title.set_fontsize(10)
    waits.set_ylim(0, max((client for client, _, _ in timeline.stalls), default=0) + 2)
    waits.yaxis.get_major_locator().set_params(integer=True)
    waits.set_xlim(0, times[-1])
    rates.legend(loc="upper right", fontsize=8, ncols=5)
    for panel in (rates, waits):
        panel.grid(alpha=0.3)
    return save(figure, path)
