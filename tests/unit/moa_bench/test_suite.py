"""Options come from fields: their names, types, defaults and ranges; what is given takes a field's place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot
from moa_bench.suite import named_path, option, options_of, with_given


@dataclass(frozen=True)
class Effort:
    cells: int = option(3, "How many.", type=click.IntRange(1))
    rate: float = option(0.5, "How fast.", "--speed", type=click.FloatRange(max=1))
    links: tuple[str, ...] = option(("4G", "5G"), "Only this.", "--link", metavar="NAME")
    lengths: tuple[int, int] = option((1, 9), "From and to.")
    kind: Literal["plain", "drafts"] = option("plain", "Who.")
    file: Path | None = option(None, "Where from.")
    alone: bool = option(False, "Nothing else.")
    drafters: Mapping[str, Path] = option({}, "These too.", "--drafter", type=named_path, multiple=True)
    hidden: int = 7


def run(*arguments: str) -> Effort | str:
    """What a command makes of its arguments, or what it says."""
    made: list[Effort] = []

    @click.command()
    @options_of(Effort)
    def command(**flags: Any) -> None:
        made.append(with_given(Effort(), flags | {"hidden": 9}))

    said = CliRunner().invoke(command, arguments)
    return made[0] if made else said.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ((), {}),
        (("--cells", "4"), {"cells": 4}),
        (("--speed", "1"), {"rate": 1.0}),
        (("--link", "RTT 0", "--link", "4G"), {"links": ("RTT 0", "4G")}),
        (("--lengths", "2", "5"), {"lengths": (2, 5)}),
        (("--kind", "drafts", "--file", "a", "--alone"), {"kind": "drafts", "file": Path("a"), "alone": True}),
        (("--drafter", "MoA, N = 0=n0", "--drafter", "b=c"), {"drafters": {"MoA, N = 0": Path("n0"), "b": Path("c")}}),
    ],
)
def test_what_is_given_takes_its_place(arguments: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert run(*arguments) == Effort(**fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cells", "0"), snapshot("Error: Invalid value for '--cells': 0 is not in the range x>=1.")),
        (("--drafter", "=c"), snapshot("Error: --drafter =c is not NAME=PATH or NAME=ID.")),
        (("--hidden", "1"), snapshot("Error: No such option '--hidden'.")),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert run(*arguments) == message
