"""The simulator beside what suites have measured here. Reads their files of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError

from moa_bench.simulation.device import CLIENT_MS
from moa_bench.simulation.server import Costs
from moa_bench.suites.scale.askers import ask_for
from moa_bench.suites.scale.figures import TOLERANCE
from moa_bench.users.questions import Lengths, make_questions

# What is likely where a cell misses; no cost was found that would mend these and spoil no other.
NOISE = "two prompts; no draft arrives in time here, and at other acceptances, where that is so too, it is met"
JITTER = "two prompts over a jittery link, whose delays are drawn otherwise; a server that waits meets each of them"
FEW = "nearly all of the row's time goes into prompts, so few tokens are counted"


def validate(folder: Path, *, most_users: int = 32) -> list[dict[str, Any]]:
    """A row for each measured cell that the simulator can be asked for.

    `network`, `network-padded` and `capacity-padded` were measured with commit ac40112, whose targets were padded to a
    stated cost; this tree can measure none of them again.

    Raises:
        DataError: no results are there, or they cannot be read.
    """
    rows = []
    for name in ("network", "network-padded"):
        rows += _network(name, _read(folder / f"{name}.json"))
    rows += _capacity(_read(folder / "capacity-padded.json"), most_users=most_users)
    if not rows:
        raise DataError(
            f"{folder} has no measured cells.",
            hint="Take the results of the checkout back: git checkout bench/results.",
        )
    return rows


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {"cells": []}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.", hint="Measure again, or take the file back.") from error
    return result


def _network(name: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Suite 2: an oracle over links; the simulation met the same luck of the oracle when it was measured."""
    rows = []
    for cell in result["cells"]:
        if not cell["predicted"]:
            continue
        measured, simulated = cell["ratio"]["median"], cell["predicted"]["median"]
        what = f"{cell['link']}, {cell['way']}, acceptance {cell['acceptance']:g}, over plain"
        rows.append(row(name, what, measured, simulated, JITTER if "waits" in cell["way"] else NOISE))
    return rows


def _capacity(result: dict[str, Any], *, most_users: int) -> list[dict[str, Any]]:
    """Suite 4 with an emulated target, whose forwards take what the wrapper says: the same prompts' lengths."""
    rows: list[dict[str, Any]] = []
    if not result["cells"]:
        return rows
    effort, passage = result["effort"], range(1)
    lengths = Lengths(**effort["lengths"])
    step_ms, row_ms = effort["padding"]["step_ms"], effort["padding"]["row_ms"]
    costs = Costs(plain_ms=step_ms, verify_ms=step_ms, node_ms=row_ms)
    for cell in result["cells"]:
        if cell["users"] > most_users:
            continue
        questions = make_questions(passage, lengths, max(effort["users"]), effort["prompts"], effort["seed"])
        acceptance = cell["way"]["acceptance"]
        met = ask_for(
            effort["seconds"],
            [[len(prompt) for prompt in own] for own in questions[: cell["users"]]],
            costs,
            tokens=effort["answer_tokens"],
            acceptance=acceptance,
            draft_ms=effort["draft_ms"] + CLIENT_MS,
        )
        way = "plain" if acceptance is None else f"devices' drafts, acceptance {acceptance:g}"
        for what, measured, simulated in (
            ("tokens a second in all", cell["met"]["tokens_per_s"], met.tokens_per_s),
            ("of the median user", cell["met"]["median_tokens_per_s"], met.median_tokens_per_s),
        ):
            rows.append(row("capacity-padded", f"{way}, {cell['users']} users, {what}", measured, simulated, FEW))
    return rows


def row(suite: str, cell: str, measured: float, simulated: float, why: str) -> dict[str, Any]:
    """One comparison; `why` is kept where it misses."""
    error = measured / simulated - 1
    missed = abs(error) > TOLERANCE
    return {
        "suite": suite, "cell": cell, "measured": measured, "simulated": simulated, "error": error,
        "why": why if missed else "",
    }  # fmt: skip
