"""How many times the users of plain serving and of co-located drafting, over the acceptance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture
from moa_bench.suites.scale.tables import AIM, ratios

RATES = (50.0, 30.0, 20.0)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path = folder / "scale-aim.png"
    with picture(path, "Users at equal speed, simulated", (12, 5), 2) as (figure, (plain, colocated)):
        for number, world in enumerate(result["worlds"]):
            colour, rate = f"C{number}", _rate(world)
            label = f"{world['name']}: {rate:g} tokens/s"
            streamed, auto = ratios(world, rate, "streamed", "plain"), ratios(world, rate, "auto", "plain")
            plain.plot([a for a, _, _ in streamed], [r for _, r, _ in streamed], "-o", color=colour, label=label)
            plain.plot([a for a, _, _ in auto], [r for _, r, _ in auto], "--", color=colour)
            points = ratios(world, rate, "streamed", "co-located")
            colocated.plot([a for a, _, _ in points], [r for _, r, _ in points], "-o", color=colour)
            colocated.plot([a for a, _, _ in points], [form for _, _, form in points], ":", color=colour)
        plain.axhline(AIM, color="grey", linewidth=1)
        plain.set(title="over plain serving (dashed: ours, auto)", ylabel="times the users at equal speed")
        colocated.set(title="devices' drafts over co-located (dotted: 1 + g t_d / t_v)")
        for panel in (plain, colocated):
            panel.set(xlabel="acceptance of a draft token")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return [path]


def _rate(world: Mapping[str, Any]) -> float:
    """The highest speed that plain serving has for some."""
    return next((rate for rate in RATES if ratios(world, rate, "streamed", "plain")), RATES[-1])
