"""The functions that docs/life-of-a-token.md lists exist, and each one calls those that are indented below it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/life-of-a-token.md"
CROSSINGS = {"thread", "queue", "turn", "wire", "dispatch"}
LINE = re.compile(r"(?P<indent>(?:  )*)(?P<path>[\w/]+\.py): (?P<name>[\w.]+)(?: -> (?P<kind>\w+))?")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, int]  # line and column


@dataclass(frozen=True)
class Stop:
    """A function on the way, and how deep in calls it is."""

    depth: int
    path: str
    name: str
    kind: str | None

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def blocks_of(page: str) -> list[list[Stop]]:
    """The stops between crossings."""
    section = page.split("## The functions on the way", 1)[1]
    blocks = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == len(re.findall(r"^Crossing: (\w+)\.$", section, re.MULTILINE)) + 1
    assert set(re.findall(r"^Crossing: (\w+)\.$", section, re.MULTILINE)) <= CROSSINGS
    return [[_stop(line) for line in block.splitlines()] for block in blocks]


def _stop(line: str) -> Stop:
    match = LINE.fullmatch(line)
    assert match is not None, f"not a stop: {line}"
    return Stop(len(match["indent"]) // 2, match["path"], match["name"], match["kind"])


@cache
def _module(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def function_of(stop: Stop) -> Function:
    """The function's definition."""
    scope: ast.Module | ast.ClassDef | Function = _module(stop.path)
    for name in stop.name.split("."):
        found = [
            node
            for node in scope.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        assert found, f"{stop} is not there"
        scope = found[0]
    assert isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef), f"{stop} is no function"
    return scope


def calls(stop: Stop, name: str) -> list[Place]:
    """Where calls of this name end in a function: what is called in an argument ends first."""
    return sorted(
        (call.end_lineno or 0, call.end_col_offset or 0)
        for call in ast.walk(function_of(stop))
        if isinstance(call, ast.Call) and name in (getattr(call.func, "attr", ""), getattr(call.func, "id", ""))
    )


def problems(blocks: list[list[Stop]]) -> list[str]:
    """What is not true of the list."""
    found = [each for block in blocks for each in _problems(block)]
    return found + [f"{stop} makes no {stop.kind}" for block in blocks for stop in block if not _makes(stop)]


def _problems(block: list[Stop]) -> list[str]:
    found = (
        []
        if [stop.depth for stop in block if not stop.depth] == [0]
        else [f"{block[0]} does not begin a block of its own"]
    )
    for index, caller in enumerate(block):
        below: list[Stop] = []
        for stop in block[index + 1 :]:
            if stop.depth <= caller.depth:
                break
            if stop.depth == caller.depth + 1:
                below.append(stop)
        places = [(stop, calls(caller, stop.name.rsplit(".", 1)[-1])) for stop in below]
        found += [f"{caller} does not call {stop}" for stop, called in places if not called]
        found += [
            f"{caller} does not call {later} after {earlier}"
            for (earlier, first), (later, last) in pairwise(places)
            if first and last and last[-1] <= first[0]
        ]
    return found


def _makes(stop: Stop) -> bool:
    """Whether a function names the kind of object that a node becomes in it."""
    named = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(function_of(stop))}
    return stop.kind is None or stop.kind in named


def test_the_list_is_true() -> None:
    blocks = blocks_of(PAGE.read_text("utf-8"))
    assert sum(len(block) for block in blocks) > 50
    assert problems(blocks) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("ClientEngine._wait", "ClientEngine._sleep", "is not there"),
        ("StreamedDrafting.take_frame", "StreamedDrafting.on_verdict", "does not call"),
        ("-> DraftStep", "-> Verdict", "makes no Verdict"),
    ],
)
def test_a_wrong_name_is_found(before: str, after: str, problem: str) -> None:
    page = PAGE.read_text("utf-8").replace(before, after)
    try:
        found = problems(blocks_of(page))
    except AssertionError as error:
        found = [str(error)]
    assert any(problem in each for each in found)


def test_a_wrong_order_is_found() -> None:
    send = "FrameSender.draft"
    [block] = [block for block in blocks_of(PAGE.read_text("utf-8")) if any(stop.name == send for stop in block)]
    at = next(index for index, stop in enumerate(block) if stop.name == send)
    assert _problems(block) == []
    later, earlier = str(block[at]), str(block[2])
    assert _problems([*block[:2], *block[at:], *block[2:at]]) == [f"{block[1]} does not call {earlier} after {later}"]
