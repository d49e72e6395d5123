"""Learning curves: JSON lines while training runs, a picture next to each checkpoint."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

from moa_shared.errors import DiskFullError

LINES = "curves.jsonl"
PICTURE = "curves.png"


def append_point(folder: Path, point: dict[str, float]) -> None:
    """Adds one line. Keys: step, tokens, seconds, learning_rate, total, cross_entropy, feature, state (N > 0),
    agreement (share of positions whose draft is the target's choice), gradient_norm.
    """
    try:
        with (folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: round(value, 6) for key, value in point.items()}) + "\n")
    except OSError as error:
        raise DiskFullError(f"The curves in {folder} cannot be written ({error.strerror}).") from None


def read_points(folder: Path, up_to_step: int | None = None) -> list[dict[str, float]]:
    """The points of a run; a torn last line is left out, and so are points after `up_to_step`."""
    path = folder / LINES
    if not path.is_file():
        return []
    points = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            point = json.loads(line)
        except ValueError:
            continue
        if up_to_step is None or point["step"] <= up_to_step:
            points.append(point)
    return points


def cut_points(folder: Path, up_to_step: int) -> None:
    """Drops what a killed piece of a run reported after its last whole checkpoint."""
    points = read_points(folder, up_to_step)
    if (folder / LINES).is_file():
        text = "".join(json.dumps(point) + "\n" for point in points)
        (folder / LINES).write_text(text, encoding="utf-8")


def gain_per_doubling(points: list[dict[str, float]]) -> float | None:
    """What a doubling of the tokens brings in agreement: the slope over the base-2 logarithm of the tokens, by least
    squares, from an eighth of the run on (three doublings); None for less than 16 points there.

    The learning rate falls along a run, so that a longer run would not have had all of it at the same tokens: a guide.
    """
    if not points:
        return None
    late = [point for point in points if point["tokens"] >= points[-1]["tokens"] / 8]
    if len(late) < 16:
        return None
    x = [math.log2(point["tokens"]) for point in late]
    y = [point["agreement"] for point in late]
    return statistics.linear_regression(x, y).slope


def draw_curves(folder: Path) -> None:
    """Loss and agreement over tokens, smoothed over a twentieth of the run; a picture newer than its points stays."""
    points, picture = read_points(folder), folder / PICTURE
    if not points or (picture.is_file() and picture.stat().st_mtime_ns > (folder / LINES).stat().st_mtime_ns):
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4))
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.15, top=0.96, wspace=0.25)
    tokens = [point["tokens"] / 1e6 for point in points]
    for place, (name, label) in enumerate((("cross_entropy", "cross-entropy"), ("agreement", "agreement"))):
        axis = figure.add_subplot(1, 2, place + 1)
        values = [point[name] for point in points]
        axis.plot(tokens, values, alpha=0.3)
        axis.plot(tokens, _smooth(values, max(1, len(values) // 20)))
        axis.set_xlabel("million training tokens")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


def _smooth(values: list[float], width: int) -> list[float]:
    return [sum(values[max(0, i - width) : i + 1]) / len(values[max(0, i - width) : i + 1]) for i in range(len(values))]
