"""What a doctor finds: the outcome of each step, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "skip"]
NAME_WIDTH = 11  # of the longest name of a step


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a step.

    Args:
        name: of the step.
        message: what was found; `hint`: what to do about it.
        exit_code: of the program, if it failed.
    """

    name: str
    state: State
    message: str
    hint: str = ""
    exit_code: int = 0


def check_line(check: Check) -> str:
    """A line for a person, and what to do below it."""
    line = f"  {check.state:4}  {check.name:{NAME_WIDTH}}  {check.message}\n"
    return line + (f"{'':{NAME_WIDTH + 10}}{check.hint}\n" if check.hint else "")


def check_fields(check: Check) -> dict[str, str | None]:
    """The same for programs."""
    return {"name": check.name, "state": check.state, "message": check.message, "hint": check.hint or None}


def exit_code(checks: Sequence[Check]) -> int:
    """That of the first failure; 0: there is none."""
    return next((each.exit_code for each in checks if each.state == "fail"), 0)


def si_bytes(count: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
