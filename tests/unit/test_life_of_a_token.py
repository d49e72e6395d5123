"""The functions that docs/life-of-a-token.md lists exist, and each one calls those that are indented below it."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/life-of-a-token.md"
CROSSINGS = {"thread", "queue", "turn", "wire"}
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
def function_of(path: str, name: str) -> Function | None:
    """A function's definition; None: there is none."""
    if not (ROOT / path).exists():
        return None
    scope: ast.Module | ast.ClassDef | Function = ast.parse((ROOT / path).read_text("utf-8"))
    for part in name.split("."):
        found = [
            node
            for node in scope.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        if not found:
            return None
        scope = found[0]
    return scope if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else None


def calls(caller: Function, stop: Stop) -> list[Place]:
    """Where calls of a stop end in a function: what is called in an argument ends first."""
    name = stop.name.rsplit(".", 1)[-1]
    return sorted(
        (call.end_lineno or 0, call.end_col_offset or 0)
        for call in ast.walk(caller)
        if isinstance(call, ast.Call) and name in (getattr(call.func, "attr", ""), getattr(call.func, "id", ""))
    )


def problems(blocks: list[list[Stop]]) -> list[str]:
    """What is not true of the list."""
    return [each for block in blocks for each in _problems(block)]


def _problems(block: list[Stop]) -> list[str]:
    found = [] if [stop.depth for stop in block].count(0) == 1 else [f"{block[0]} does not begin a block of its own"]
    for index, caller in enumerate(block):
        function = function_of(caller.path, caller.name)
        if function is None:
            found.append(f"{caller} is not there")
            continue
        if caller.kind is not None and caller.kind not in _names(function):
            found.append(f"{caller} makes no {caller.kind}")
        places = [(stop, calls(function, stop)) for stop in _called(block, index)]
        found += [f"{caller} does not call {stop}" for stop, called in places if not called]
        found += [
            f"{caller} does not call {later} after {earlier}"
            for (earlier, first), (later, last) in pairwise(places)
            if first and last and last[-1] <= first[0]
        ]
    return found


def _called(block: list[Stop], index: int) -> list[Stop]:
    """The stops that a stop calls itself."""
    depth = block[index].depth
    below = takewhile(lambda stop: stop.depth > depth, block[index + 1 :])
    return [stop for stop in below if stop.depth == depth + 1]


def _names(function: Function) -> set[str]:
    return {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(function)}


def test_the_list_is_true() -> None:
    blocks = blocks_of(PAGE.read_text("utf-8"))
    assert sum(len(block) for block in blocks) > 50
    assert problems(blocks) == []


def test_a_name_on_the_way_has_three_homes_at_most() -> None:
    """But those of an interface, of which each kind of drafter is a home."""
    texts = [path.read_text("utf-8") for room in ("client", "server", "shared") for path in (ROOT / room).rglob("*.py")]
    homes = Counter(name for text in texts for name in re.findall(r"^    (?:async )?def (\w+)", text, re.MULTILINE))
    names = {stop.name.rsplit(".", 1)[-1] for block in blocks_of(PAGE.read_text("utf-8")) for stop in block}
    assert [name for name in names - {"expand", "grow"} if homes[name] > 3] == []
