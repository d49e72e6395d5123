"""What people read of training and of evaluations: learning curves, model cards, tables and a picture.

Tables and picture are of what `moa-train evaluate --json` writes. Besides the drafters there is a device that has none,
as a client of a text API: it has what was served, and no more. Pure but for the files.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.errors import DataError, DiskFullError
from moa_shared.models import ModelFiles
from moa_shared.programs.atomic import whole_file

from moa_training.settings import FitSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Evaluations = Mapping[str, dict[str, Any]]
LINES, PICTURE, CARD = "curves.jsonl", "curves.png", "README.md"
API = "API client"
_MEASURES = {
    "in_hand": "right share of the answer in hand",
    "agreement_8": "agreement, first 8",
    "agreement_16": "agreement, first 16",
    "agreement_32": "agreement, first 32",
    "new_agreement": "agreement where the text is new",
    "log_likelihood": "target's log-likelihood",
    "repeated": "repeated 4-grams",
    "target_repeated": "target's own 4-grams",
    "useful_run": "useful run, tokens",
    "shown": "shown, tokens",
    "precision": "kept of what is shown",
}
_NOTHING = ("agreement_8", "agreement_16", "agreement_32", "useful_run", "shown")  # of which such a client has 0
_DRAWN = ("in_hand", "agreement_16", "useful_run", "precision", "log_likelihood", "repeated")
_RESULTS = {"right": "right result", "same_result": "the target's result"}


# ---------------------------------------------------------------- learning curves


def append_point(folder: Path, point: dict[str, float]) -> None:
    """Adds one line. Keys: step, tokens, seconds, learning_rate, total, cross_entropy, feature, state (N > 0),
    agreement (share of positions whose draft is the target's choice), gradient_norm.
    """
    try:
        with (folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: round(value, 6) for key, value in point.items()}) + "\n")
    except OSError as error:
        raise DiskFullError(f"The curves in {folder} cannot be written ({error.strerror}).") from None


def read_points(folder: Path) -> list[dict[str, float]]:
    """The points of a run; a torn last line is left out."""
    path = folder / LINES
    points = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            points.append(json.loads(line))
        except ValueError:
            continue
    return points


def cut_points(folder: Path, up_to_step: int) -> None:
    """Drops what a killed piece of a run reported after its last whole checkpoint."""
    if points := read_points(folder):
        text = "".join(json.dumps(point) + "\n" for point in points if point["step"] <= up_to_step)
        (folder / LINES).write_text(text, encoding="utf-8")


def draw_curves(folder: Path) -> None:
    """Loss and agreement over tokens, smoothed over a twentieth of the run; a picture newer than its points stays."""
    points, picture = read_points(folder), folder / PICTURE
    if not points or (picture.is_file() and picture.stat().st_mtime_ns > (folder / LINES).stat().st_mtime_ns):
        return
    figure = _figure(9, 3.4)
    tokens, width = [point["tokens"] / 1e6 for point in points], max(1, len(points) // 20)
    for place, (name, label) in enumerate((("cross_entropy", "cross-entropy"), ("agreement", "agreement"))):
        axis = figure.add_subplot(1, 2, place + 1)
        values = [point[name] for point in points]
        axis.plot(tokens, values, alpha=0.3)
        axis.plot(tokens, [statistics.fmean(values[max(0, i - width) : i + 1]) for i in range(len(values))])
        axis.set_xlabel("million training tokens")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    _save(figure, picture)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise DiskFullError(f"The picture {path} cannot be written ({error.strerror}).") from None


# ---------------------------------------------------------------- model cards


def write_card(
    folder: Path, config: DrafterConfig, settings: FitSettings, files: ModelFiles, place: Mapping[str, Any]
) -> None:
    """Writes the model card next to a checkpoint, whole or not at all: what it was made from and how."""
    points = read_points(folder)
    agreement = sum(point["agreement"] for point in points[-10:]) / max(1, len(points[-10:]))
    memory_of = settings.drafter.memory_of
    if memory_of is not None:  # without folders of this machine
        named = Path(memory_of.parent.name if memory_of.suffix else memory_of.name)
        settings = replace(settings, drafter=replace(settings.drafter, memory_of=named))
    shown = {
        name: value for name, value in settings.json_values().items() if name not in ("output", "shards", "start_from")
    }
    text = f"""# Drafter for {files.target_id}

{config.traits.about}, trained by moa. Licence: that of the target and of this package.

| | |
| --- | --- |
| target | {files.target_id}, fingerprint `{files.fingerprint[:16]}` |
| draft vocabulary | {config.draft_vocab or config.vocab_size} of {config.vocab_size} tokens |
| training text | {place["conversations"]:,} conversations ({", ".join(path.name for path in settings.shards)}) |
| tokens seen | {place["tokens"]:,} in {place["step"]:,} updates, {place["epoch"] + 1} epoch(s) begun |
| running time | {place["seconds"] / 60:.0f} minutes |
| agreement with the target at the end of training | {agreement:.3f} of the positions that it was trained on |

Command: `moa-train fit CONFIG` with

```json
{json.dumps(shown, indent=1)}
```

![learning curves]({PICTURE})
"""
    try:
        with whole_file(folder / CARD) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DiskFullError(f"The card {folder / CARD} cannot be written ({error.strerror}).") from None


# ---------------------------------------------------------------- evaluations, as tables


def read_evaluation(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not content["shapes"]:
            raise KeyError("shapes")
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path} holds no evaluation.", hint="Write one with moa-train evaluate --json FILE.") from None
    return content


def evaluation_text(evaluation: dict[str, Any]) -> str:
    """One evaluation: acceptance by category and by position, standalone text, results of tasks."""
    shapes = evaluation["shapes"]
    lengths = [{**shape["by_category"], "all": shape["acceptance_length"]} for shape in shapes.values()]
    lines = [_table(["", *shapes], [[name, *(f"{each[name]:.3f}" for each in lengths)] for name in lengths[0]])]
    for name, shape in shapes.items():
        lines.append(f"accepted at each depth, {name}: {' '.join(f'{share:.2f}' for share in shape['by_position'])}")
    lines.append("ms a draft: " + ", ".join(f"{name} {shape['draft_ms']:.1f}" for name, shape in shapes.items()))
    count, left_out = evaluation["questions"], evaluation["left_out"]
    asked = f"{count} question{'s' * (count != 1)}{f', {left_out} left out' * bool(left_out)}"
    lines.append(f"{asked}; tokens per target forward, the bonus token included")
    named = {evaluation["checkpoint"]: evaluation}
    return "\n\n".join(filter(None, ["\n".join(lines), text_table(named), task_table(named)]))


def acceptance_table(evaluations: Evaluations, forward_ms: float, node_ms: float) -> str:
    """Acceptance length and time of a draft of each shape, and its speed-up against plain steps on one machine, where a
    target forward takes so long, and each node in it.
    """
    rows = []
    for name, evaluation in evaluations.items():
        for shape, result in evaluation["shapes"].items():
            length, draft_ms = float(result["acceptance_length"]), float(result.get("draft_ms", 0.0))
            gain = length * forward_ms / (forward_ms + node_ms * int(shape.split()[2]) + draft_ms)
            rows.append([name, shape, f"{length:.3f}", f"{draft_ms:.1f}", f"{gain:.2f}"])
    return _table(["drafter", "draft", "acceptance length", "ms a draft", "speed-up"], rows)


def text_table(evaluations: Evaluations, *, after_tokens: bool = True) -> str:
    """The measures of standalone text at each cut, after so many tokens if asked for, too; empty without any."""
    rows = []
    for name, evaluation in evaluations.items():
        standalone = evaluation.get("standalone", {}) if after_tokens else {}
        cuts = {f"{cut} tokens": part for cut, part in standalone.items()} | evaluation.get("shares", {})
        cuts |= {"all": evaluation.get("all_shares"), "no memory": evaluation.get("cold")}
        rows += [[name, cut, *(values.get(key) for key in _MEASURES)] for cut, values in cuts.items() if values]
    served = _first_shares(evaluations).items()
    rows += [[API, share, *(_of_api(values, key) for key in _MEASURES)] for share, values in served]
    return _table(["drafter", "served", *_MEASURES.values()], rows)


def task_table(evaluations: Evaluations) -> str:
    """Task results over all categories at each share; empty without any."""
    keys = [*_RESULTS, "target_right", "ended"]
    rows: list[list[Any]] = [
        [name, share, *(_result(evaluation, share, key) for key in keys)]
        for name, evaluation in evaluations.items()
        for share in evaluation.get("task", {})
    ]
    keys = [*(f"served_{key}" for key in _RESULTS), "target_right"]
    for share, evaluation in _first_tasks(evaluations).items():
        rows.append([API, share, *(_result(evaluation, share, key) for key in keys), ""])
    return _table(["drafter", "served", *_RESULTS.values(), "right of the target", "ended"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Of texts and numbers, in Markdown; empty without rows."""
    if not rows:
        return ""
    cells = [[f"{cell:.2f}" if isinstance(cell, int | float) else str(cell or "") for cell in row] for row in rows]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _first_shares(evaluations: Evaluations) -> dict[str, dict[str, Any]]:
    """Those of the first evaluation that has any; what is served is the same in all."""
    return next((shares for each in evaluations.values() if (shares := each.get("shares"))), {})


def _first_tasks(evaluations: Evaluations) -> dict[str, dict[str, Any]]:
    """By share, the first evaluation that has task results."""
    first = next((each for each in evaluations.values() if each.get("task")), None)
    return {} if first is None else dict.fromkeys(first["task"], first)


def _of_api(values: dict[str, Any], key: str) -> float | None:
    """A measure of a client that has only what was served; None: of text that it does not have."""
    if key == "in_hand":
        return float(values["served"])
    return 0.0 if key in _NOTHING else None


def _result(evaluation: dict[str, Any], share: str, key: str) -> float | None:
    """A share of questions, over all categories."""
    parts = [part for part in evaluation["task"][share].values() if part["questions"]]
    total = sum(part["questions"] for part in parts)
    return sum(part["questions"] * part[key] for part in parts) / total if total else None


# ---------------------------------------------------------------- evaluations, as a picture


def draw_shares(evaluations: Evaluations, path: Path) -> None:
    """Quality against the share that was served: a line for each drafter, and one for a client without any."""
    first, tasks = _first_shares(evaluations), _first_tasks(evaluations)
    # Where the target itself is never right, nobody can be.
    told = {"right": any(_result(each, at, "target_right") for at, each in tasks.items()), "same_result": bool(tasks)}
    panels = [*_DRAWN, *(key for key in _RESULTS if told[key])]
    columns = (len(panels) + 1) // 2
    figure = _figure(3.6 * columns, 6.2)
    for place, key in enumerate(panels):
        axis = figure.add_subplot(2, columns, place + 1)
        axis.set_title(f"task: {_RESULTS[key]}" if key in _RESULTS else _MEASURES[key], fontsize=9)
        for number, (name, evaluation) in enumerate(evaluations.items()):
            if key in _RESULTS:
                points = {share: _result(evaluation, share, key) for share in evaluation.get("task", {})}
            else:
                points = {share: values.get(key) for share, values in evaluation.get("shares", {}).items()}
            _line(axis, points, name, "-", f"C{number}")
        if key in _RESULTS:
            served = {share: _result(each, share, f"served_{key}") for share, each in tasks.items()}
        else:
            served = {share: _of_api(values, key) for share, values in first.items()}
        _line(axis, served, API, "--", "0.4")
        if key == "repeated":
            target = {share: values.get("target_repeated") for share, values in first.items()}
            _line(axis, target, "the target itself", ":", "black")
        axis.set_xlabel("served share of the answer", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    lines: dict[str, Line2D] = {}
    for line in (line for axis in figure.axes for line in axis.get_lines()):
        lines.setdefault(str(line.get_label()), line)
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=6, fontsize=8)
    _save(figure, path)


def _line(axis: Axes, points: Mapping[str, float | None], label: str, style: str, color: str) -> None:
    known = [(float(share), value) for share, value in points.items() if value is not None]
    if known:
        axis.plot([x for x, _ in known], [y for _, y in known], style, color=color, label=label, marker=".")
