"""The map: the best way by round trip and number of users, coloured by what everything on brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.suites.payoff.tables import EVERYTHING, best, ratios


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws the map into a PNG file of a folder.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    cells = result["cells"]
    rtts = sorted({each["rtt_ms"] for each in cells})
    loads = sorted({each["users"] for each in cells})
    colours = np.full((len(loads), len(rtts)), np.nan)
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(2.2 + 1.7 * len(rtts), 1.6 + 1.0 * len(loads)), layout="constrained")
    for cell in cells:
        row, column = loads.index(cell["users"]), rtts.index(cell["rtt_ms"])
        name, ratio = best(cell)
        everything = ratios(cell).get(EVERYTHING)
        colours[row, column] = np.nan if everything is None else everything
        told = f"{name}\n{ratio:.2f}" if name != EVERYTHING else ""
        if everything is not None:
            told += f"\neverything on\n{everything:.2f}"
        dark = everything is not None and abs(everything - 1.0) > 0.35
        panel.text(column, row, told.strip(), ha="center", va="center", fontsize=7, color="white" if dark else "black")
    image = panel.imshow(colours, cmap="RdYlGn", vmin=0.5, vmax=1.5, aspect="auto", origin="lower")
    panel.set_xticks(range(len(rtts)), [f"{rtt:g}" for rtt in rtts])
    panel.set_yticks(range(len(loads)), [str(users) for users in loads])
    panel.set(xlabel="round trip, ms", ylabel="users at once")
    figure.colorbar(image, label="everything on, over plain serving")
    figure.suptitle(f"The best way, {result['target']}", fontsize=9)
    return [save(figure, folder / f"{result['name']}.png")]
