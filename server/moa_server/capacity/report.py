"""The plan of a server's memory, for people and for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.programs.table import table
from rich.filesize import decimal

from moa_server.capacity.estimate import StepEstimate
from moa_server.capacity.plan import ConversationRoom, Needed
from moa_server.capacity.speed import PROMPT_TOKENS, READING_TOKENS_PER_S, Speed, users_fed

READING = f"{READING_TOKENS_PER_S:g} tokens/s"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was planned.

    Args:
        target: the model's name, on this `level`.
        budget: bytes of keys and values.
        most_sessions: that the server holds, whatever fits (--max-sessions).
        speed: measured here; None: it was not asked for.
        estimate: of the speed, from sizes; None: it was measured, or the level has none.
    """

    target: str
    level: str
    needed: Needed
    budget: int
    rooms: Sequence[ConversationRoom]
    most_sessions: int
    speed: Speed | None = None
    estimate: StepEstimate | None = None


def capacity_text(capacity: Capacity) -> str:
    """The plan for people."""
    needed = capacity.needed
    lines = [
        f"{capacity.target} at {capacity.level}",
        f"before anybody asks  {decimal(needed.total)}: weights {decimal(needed.weights)}, "
        f"drafters {decimal(needed.drafters)}, the program {decimal(needed.process)}",
        f"keys and values      {decimal(capacity.budget)}",
        "",
    ]
    rows = [("tokens", "a session takes", "sessions that answer at once")]
    rows += [(f"{room.tokens}", decimal(room.nbytes), f"{room.sessions}") for room in capacity.rooms]
    text = "\n".join(lines) + "\n" + table(rows, right=(0, 1, 2)) + "\n"
    text += f"Idle sessions keep only their text; --max-sessions holds {capacity.most_sessions} in all.\n"
    if capacity.speed is not None:
        text += "\n" + speed_text(capacity.speed) + "\n"
    if capacity.estimate is not None:
        text += (
            f"\nSpeed of one user here: {estimate_text(capacity.estimate)}.\n--measure loads the model and measures.\n"
        )
    return text


def estimate_text(estimate: StepEstimate) -> str:
    """An estimated speed, and what it comes from."""
    return (
        f"at most about {estimate.tokens_per_s:.3g} tokens/s; a plain step reads {decimal(estimate.nbytes)}, "
        f"and memory here gives {estimate.memory_bytes_per_s / 1e9:.3g} GB/s (an estimate)"
    )


def speed_text(speed: Speed) -> str:
    """A measured speed, and how many users it feeds."""
    return (
        f"A plain step takes {speed.step_ms:.1f} ms here, each further row {speed.row_ms:.2f} ms, "
        f"a token of a prompt {speed.read_ms:.2f} ms.\n"
        f"So {users_fed(speed)} users at once get {READING} each where prompts bring {PROMPT_TOKENS:g} new tokens for "
        f"each of an answer, and {users_fed(speed, 0.0)} while no prompt is read."
    )


def capacity_json(capacity: Capacity) -> str:
    """The plan for programs; all sizes in bytes."""
    needed, speed = capacity.needed, capacity.speed
    told: dict[str, object] = {
        "target": capacity.target,
        "level": capacity.level,
        "weights_bytes": needed.weights,
        "drafters_bytes": needed.drafters,
        "process_bytes": needed.process,
        "kv_bytes": capacity.budget,
        "max_sessions": capacity.most_sessions,
        "sessions": [
            {"tokens": room.tokens, "bytes_each": room.nbytes, "that_fit": room.sessions} for room in capacity.rooms
        ],
    }
    if capacity.estimate is not None:
        told["estimated"] = {
            "step_ms": round(capacity.estimate.step_ms, 2),
            "step_bytes": capacity.estimate.nbytes,
            "memory_bytes_per_s": round(capacity.estimate.memory_bytes_per_s),
        }
    if speed is not None:
        told["measured"] = {
            "step_ms": round(speed.step_ms, 2),
            "row_ms": round(speed.row_ms, 3),
            "read_ms": round(speed.read_ms, 3),
            "tokens_per_s": READING_TOKENS_PER_S,
            "prompt_tokens": PROMPT_TOKENS,
            "users": users_fed(speed),
            "users_without_prompts": users_fed(speed, 0.0),
        }
    return json.dumps(told, indent=2) + "\n"
