"""`moa-bench report`: what the results of all sizes say together. Pure but for reading."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError

from moa_bench.report.report import table
from moa_bench.report.results import ResultOrigin, read_folder
from moa_bench.report.spread import Spread, median_of
from moa_bench.suites.payoff.tables import best
from moa_bench.suites.single.figures import LLAMA_CPP, PLAIN, SERVER, plain_over, steady_ms
from moa_bench.suites.split.figures import ALL, STREAMED, figures_of

PAGE = "measurements/index.md"  # of docs/
TARGETS, MAP = "moa-bench report targets", "moa-bench report map"
LINKS = ("5G", "4G")
ORACLE = f"oracle, 0.8: {STREAMED}"  # the drafter of a target that has none


def targets_table(*machines: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each target: its speed on one core, over llama.cpp's, and what drafts bring one user over links.

    Args:
        machines: the results of each, by name.
    """
    rows = []
    for name, found in (row for results in machines for row in _by_target(results, "single")):
        rounds, peer, base = found["single"]["rounds"], LLAMA_CPP, SERVER
        plain = [answer for each in rounds if not each["short"] for answer in each["answers"][PLAIN]]
        speed = Spread.of([1e3 / steady_ms([answer]) for answer in plain]).median
        over = [median_of(plain_over(rounds, peer, base)), median_of(plain_over(rounds, peer, base, whole=True))]
        split = found.get("split", {"rounds": []})["rounds"]
        drafted = [_over_link([each for each in split if each["link"] == link]) for link in LINKS]
        origins = [ResultOrigin.of(found[suite]) for suite in ("single", "split") if suite in found]
        commits = ", ".join(dict.fromkeys(str(origin.commit) for origin in origins))
        rows.append([name, f"{speed:.1f}", *over, *drafted, origins[0].machine, commits])
    head = ["target", "plain, tokens/s", "over llama.cpp's", "whole answers", *(f"drafts, {each}" for each in LINKS)]
    return table([*head, "machine", "commit"], rows)


def map_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The best way to draft by round trip, users and target: its speed over plain serving's."""
    cells = [(name, cell) for name, found in _by_target(results, "payoff") for cell in found["payoff"]["cells"]]
    rtts = sorted({cell["rtt_ms"] for _, cell in cells})
    rows: dict[tuple[str, int], dict[float, str]] = {}
    for name, cell in cells:
        way, ratio = best(cell)
        rows.setdefault((name, cell["users"]), {})[cell["rtt_ms"]] = f"{way} {ratio:.2f}"
    lines = [[*row, *(told.get(rtt, "") for rtt in rtts)] for row, told in rows.items()]
    return table(["target", "users", *(f"{rtt:g} ms" for rtt in rtts)], lines)


def _by_target(
    results: Mapping[str, Mapping[str, Any]], suite: str
) -> Iterator[tuple[str, dict[str, Mapping[str, Any]]]]:
    """The results of each target that a suite has measured, by the names of their suites; the default one's first."""
    for suffix in sorted(name.removeprefix(suite) for name in results if re.fullmatch(f"{suite}(-.+)?", name)):
        found = {name.removesuffix(suffix): each for name, each in results.items() if name.endswith(suffix)}
        yield str(results[suite + suffix]["target"]), found


def _over_link(rounds: Sequence[Mapping[str, Any]]) -> str:
    """What the program brings by itself, or a streaming oracle, over one link."""
    ratios = [found.over_plain for method in (ALL, ORACLE) if (found := figures_of(rounds, method)).over_plain]
    return f"{Spread.of(ratios[0]).median:.2f}" if ratios else ""


def sections_of(results: Path) -> dict[str, str]:
    """The sections of the page, by name.

    Args:
        results: folder of the results; folders in it are of other machines, which only the table of targets has.

    Raises:
        DataError: there is no result.
    """
    found = read_folder(results)
    if not found:
        raise DataError(f"There are no results in {results}.", hint="Measure first: moa-bench run all.")
    others = [read_folder(folder) for folder in sorted(results.glob("[!.]*/"))]
    return {TARGETS: targets_table(found, *others), MAP: map_table(found)}
