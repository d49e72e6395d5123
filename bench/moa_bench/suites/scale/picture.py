"""The curves over the acceptance, and what each assumption does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.suites.scale.figures import Effect, ranked
from moa_bench.suites.scale.tables import AIM, ratios

RATES = (50.0, 30.0, 20.0)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws `scale-aim.png` and, where assumptions were varied, `scale-sensitivity.png`.

    Raises:
        ConfigError: matplotlib is not there, or a file cannot be written.
    """
    paths = [_draw_aim(result, folder / "scale-aim.png")]
    if result["sensitivity"]:
        paths.append(_draw_tornado(result, folder / "scale-sensitivity.png"))
    return paths


def _draw_aim(result: Mapping[str, Any], path: Path) -> Path:
    figure, (plain, colocated) = new_pyplot().subplots(1, 2, figsize=(12, 5), layout="constrained")
    for number, world in enumerate(result["worlds"]):
        colour, rate = f"C{number}", _rate(world)
        for way, marker in (("streamed", "o"), ("auto", "")):
            points = ratios(world, rate, way, "plain")
            label = f"{world['name']}: {rate:g} tokens/s" if way == "streamed" else None
            style = "-" if way == "streamed" else "--"
            plain.plot(
                [a for a, _, _ in points], [r for _, r, _ in points], style, color=colour, marker=marker, label=label
            )
        points = ratios(world, rate, "streamed", "co-located")
        colocated.plot([a for a, _, _ in points], [r for _, r, _ in points], "-o", color=colour)
        colocated.plot([a for a, _, _ in points], [form for _, _, form in points], ":", color=colour)
    plain.axhline(AIM, color="grey", linewidth=1)
    plain.set(title="over plain serving (dashed: ours, auto)", ylabel="times the users at equal speed")
    colocated.set(title="devices' drafts over co-located (dotted: 1 + g t_d / t_v)")
    for panel in (plain, colocated):
        panel.set(xlabel="acceptance of a draft token")
        panel.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return save(figure, path)


def _rate(world: Mapping[str, Any]) -> float:
    """The highest speed that plain serving has for some."""
    return next((rate for rate in RATES if ratios(world, rate, "streamed", "plain")), RATES[-1])


def _draw_tornado(result: Mapping[str, Any], path: Path) -> Path:
    cases = result["sensitivity"]
    figure, panels = new_pyplot().subplots(
        1, len(cases), figsize=(7 * len(cases), 6), layout="constrained", squeeze=False
    )
    for panel, case in zip(panels[0], cases, strict=True):
        effects = ranked([Effect(**effect) for effect in case["effects"]])[::-1]
        names = [each.name.replace("_", " ") for each in effects]
        panel.barh(names, [each.halved - case["base"] for each in effects], left=case["base"], label="halved")
        panel.barh(
            names, [each.doubled - case["base"] for each in effects], left=case["base"], label="doubled", alpha=0.7
        )
        panel.axvline(case["base"], color="black", linewidth=1)
        panel.set(xlabel=f"users a GPU at {case['rate']:g} tokens a second each, ours")
        panel.set_title(case["world"], fontsize=10)
        panel.tick_params(axis="y", labelsize=8)
        panel.legend(fontsize=8)
    return save(figure, path)
