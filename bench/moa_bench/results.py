"""Results that there are: what two of them both measured, side by side, and what those of all targets say together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from moa_shared.errors import DataError

from moa_bench.registry import LLAMA_CPP
from moa_bench.report import Spread, median_of, processor, read_folder, read_result, table
from moa_bench.suites.single.tables import PLAIN, SERVER, plain_over, steady_ms
from moa_bench.suites.split.tables import ALL, STREAMED, figures_of

PAGE, TARGETS = "measurements/index.md", "moa-bench report targets"  # of docs/, and its section
DESCRIBING = ("suite", "name", "quick", "pinned", "machine", "effort", "links", "seeds")  # not measured
LINKS = ("5G", "4G")
ORACLE = f"oracle, 0.8: {STREAMED}"  # the drafter of a target that has none


def compare_paths(a: Path, b: Path) -> str:
    """The comparison of two files, or of what two folders both have, as Markdown."""
    if a.is_dir() != b.is_dir():
        raise DataError(f"{a} and {b} are a folder and a file.", hint="Name two files, or two folders.")
    if not a.is_dir():
        return compare(read_result(a), read_result(b), str(a), str(b))
    first, second = read_folder(a), read_folder(b)
    both = [name for name in first if name in second]
    if not both:
        raise DataError(f"{a} and {b} have no result of the same name.", hint="Name two folders of results.")
    parts = [f"## {name}\n\n" + compare(first[name], second[name], f"{a.name}", f"{b.name}") for name in both]
    for folder, only in ((a, first.keys() - second.keys()), (b, second.keys() - first.keys())):
        if only:
            parts.append(f"Only in {folder}: {', '.join(sorted(only))}.\n")
    return "\n".join(parts)


def compare(a: Mapping[str, Any], b: Mapping[str, Any], name_a: str, name_b: str) -> str:
    """A row for each figure that both have: its value in either, and the second over the first."""
    names_a, names_b = ({str(each["suite"]), str(each.get("name", each["suite"]))} for each in (a, b))
    if names_a.isdisjoint(names_b):
        hint = "Compare results of one suite."
        raise DataError(f"{name_a} is a result of {a['suite']}, {name_b} of {b['suite']}.", hint=hint)
    first, second = ({key: value for key, value in each.items() if key not in DESCRIBING} for each in (a, b))
    figures_a, figures_b = dict(figures("", first)), dict(figures("", second))
    rows = [
        [name, f"{one:.4g}", f"{figures_b[name]:.4g}", f"{figures_b[name] / one:.3f}" if one else ""]
        for name, one in figures_a.items()
        if name in figures_b
    ]
    if not rows:
        raise DataError(f"{name_a} and {name_b} have no figure in common.", hint="Compare runs of the same effort.")
    left_out = len(figures_a.keys() ^ figures_b.keys())
    note = f"\n{left_out} figures are only in one of them.\n" if left_out else ""
    return warnings(a, b) + table([str(a["suite"]), name_a, name_b, "ratio"], rows) + note


def origin(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the figures of a result depend on; None: it does not say."""
    machine = result.get("machine") or {}
    cpu = processor(machine) if "cpu" in machine else None
    return {
        "machine": cpu,
        "commit": machine.get("commit"),
        "level": result.get("level"),
        "model": result.get("target"),
    }


def warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """A line for each thing that differs and that the figures depend on; empty if nothing does."""
    compared = [(name, origin(a)[name], origin(b)[name]) for name in origin(a)]
    compared += [(name, a.get(name), b.get(name)) for name in ("quick", "pinned")]
    lines = [f"WARNING: another {name}: {one}, then {other}." for name, one, other in compared if one != other]
    if a.get("effort") != b.get("effort"):
        lines.append("WARNING: another effort.")
    return "\n".join(lines) + "\n\n" if lines else ""


def figures(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The figures below a name: of repeated measurements and spreads, their medians."""
    if isinstance(value, Mapping):
        if "median" in value:
            yield name, float(value["median"])
            return
        for key, inner in value.items():
            yield from figures(f"{name} / {key}" if name else key, inner)
    elif isinstance(value, list | tuple) and value:
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            yield name, float(median(value))
        else:
            for label, inner in zip(_labels(value), value, strict=True):
                yield from figures(f"{name} / {label}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def _labels(values: Sequence[Any]) -> list[str]:
    """What tells the entries of a list apart: the words in them, and their place where words do not suffice."""
    seen: dict[str, int] = {}
    labels = []
    for value in values:
        texts = value.values() if isinstance(value, Mapping) else ()
        words = ", ".join(word for word in texts if isinstance(word, str))
        seen[words] = seen.get(words, 0) + 1
        again = f"#{seen[words]}" if seen[words] > 1 or not words else ""
        labels.append(" ".join(filter(None, (words, again))))
    return labels


def targets_section(results: Path) -> str:
    """A row for each target: its speed on one core, over llama.cpp's, and what drafts bring one user over links.

    `results`: folder of the results; folders in it are of other machines.
    """
    folders = [read_folder(folder) for folder in (results, *sorted(results.glob("[!.]*/")))]
    if not folders[0]:
        raise DataError(f"There are no results in {results}.", hint="Measure first: moa-bench run all.")
    head = ["target", "plain, tokens/s", "over llama.cpp's", "whole answers", *(f"drafts, {each}" for each in LINKS)]
    return table([*head, "machine", "commit"], [row for found in folders for row in target_rows(found)])


def target_rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[list[object]]:
    for suffix in sorted(name.removeprefix("single") for name in results if re.fullmatch("single(-.+)?", name)):
        single, split = results["single" + suffix], results.get("split" + suffix)
        rounds, drafted = single["rounds"], split["rounds"] if split is not None else []
        plain = [answer for each in rounds if not each["short"] for answer in each["answers"][PLAIN]]
        over = [plain_over(rounds, LLAMA_CPP, SERVER, whole=whole) for whole in (False, True)]
        origins = [origin(found) for found in (single, split) if found is not None]
        yield [
            str(single["target"]),
            f"{Spread.of([1e3 / steady_ms([answer]) for answer in plain]).median:.1f}",
            *map(median_of, over),
            *(_over_link([each for each in drafted if each["link"] == link]) for link in LINKS),
            origins[0]["machine"],
            ", ".join(dict.fromkeys(str(each["commit"]) for each in origins)),
        ]


def _over_link(rounds: Sequence[Mapping[str, Any]]) -> str:
    """What the program brings by itself, or a streaming oracle, over one link."""
    ratios = [found.over_plain for method in (ALL, ORACLE) if (found := figures_of(rounds, method)).over_plain]
    return f"{Spread.of(ratios[0]).median:.2f}" if ratios else ""
