"""The map: the best way by round trip and number of users, coloured by what everything on brings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moa_bench.report.pictures import picture
from moa_bench.suites.payoff.tables import EVERYTHING, best, ratios


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path, cells = folder / f"{result['name']}.png", result["cells"]
    rtts = sorted({each["rtt_ms"] for each in cells})
    loads = sorted({each["users"] for each in cells})
    colours = np.full((len(loads), len(rtts)), np.nan)
    size = 2.2 + 1.7 * len(rtts), 1.6 + 1.0 * len(loads)
    with picture(path, f"The best way, {result['target']}", size) as (figure, (panel,)):
        panel.grid(visible=False)
        for cell in cells:
            row, column = loads.index(cell["users"]), rtts.index(cell["rtt_ms"])
            name, ratio = best(cell)
            everything = ratios(cell).get(EVERYTHING)
            told = f"{name}\n{ratio:.2f}" if name != EVERYTHING else ""
            dark = False
            if everything is not None:
                colours[row, column] = everything
                told += f"\neverything on\n{everything:.2f}"
                dark = abs(everything - 1.0) > 0.35
            colour = "white" if dark else "black"
            panel.text(column, row, told.strip(), ha="center", va="center", fontsize=7, color=colour)
        image = panel.imshow(colours, cmap="RdYlGn", vmin=0.5, vmax=1.5, aspect="auto", origin="lower")
        panel.set_xticks(range(len(rtts)), [f"{rtt:g}" for rtt in rtts])
        panel.set_yticks(range(len(loads)), [str(users) for users in loads])
        panel.set(xlabel="round trip, ms", ylabel="users at once")
        figure.colorbar(image, label="everything on, over plain serving")
    return [path]
