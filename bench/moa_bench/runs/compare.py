"""`moa-bench compare A B`: what two results both measured, side by side. Pure but for reading them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from moa_shared.errors import DataError

from moa_bench.report.report import table
from moa_bench.report.results import ResultOrigin, read_folder, read_result

DESCRIBING = ("suite", "name", "quick", "pinned", "machine", "effort", "links", "seeds")  # not measured


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
    if _names(a).isdisjoint(_names(b)):
        raise DataError(
            f"{name_a} is a result of {a['suite']}, {name_b} of {b['suite']}.", hint="Compare results of one suite."
        )
    first, second = dict(figures(a)), dict(figures(b))
    both = [name for name in first if name in second]
    if not both:
        raise DataError(f"{name_a} and {name_b} have no figure in common.", hint="Compare runs of the same effort.")
    rows = [[name, f"{first[name]:.4g}", f"{second[name]:.4g}", _ratio(first[name], second[name])] for name in both]
    left_out = len(first.keys() ^ second.keys())
    note = f"\n{left_out} figures are only in one of them.\n" if left_out else ""
    return warnings(a, b) + table([str(a["suite"]), name_a, name_b, "ratio"], rows) + note


def _names(result: Mapping[str, Any]) -> set[str]:
    """What a result is one of: its suite, and what the page calls it."""
    return {str(result["suite"]), str(result.get("name", result["suite"]))}


def warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """A line for each thing that differs and that the figures depend on; empty if nothing does."""
    of_a, of_b = ResultOrigin.of(a), ResultOrigin.of(b)
    compared = [(name, getattr(of_a, name), getattr(of_b, name)) for name in ("machine", "commit", "level", "model")]
    compared += [(name, a.get(name), b.get(name)) for name in ("quick", "pinned", "effort")]
    lines = [
        "WARNING: another effort." if name == "effort" else f"WARNING: another {name}: {one}, then {other}."
        for name, one, other in compared
        if one != other
    ]
    return "\n".join(lines) + "\n\n" if lines else ""


def figures(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a result by name: of repeated measurements and spreads, their medians."""
    for key, value in result.items():
        if key not in DESCRIBING:
            yield from _figures(key, value)


def _figures(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, Mapping):
        if "median" in value:
            yield name, float(value["median"])
            return
        for key, inner in value.items():
            yield from _figures(f"{name} / {key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            yield name, float(median(value))
        else:
            for label, inner in zip(_labels(value), value, strict=True):
                yield from _figures(f"{name} / {label}", inner)


def _labels(values: Sequence[Any]) -> list[str]:
    """What tells the entries of a list apart: the words in them, and their place where words do not suffice."""
    words = [
        ", ".join(str(word) for word in value.values() if isinstance(word, str)) if isinstance(value, Mapping) else ""
        for value in values
    ]
    seen: dict[str, int] = {}
    labels = []
    for word in words:
        seen[word] = seen.get(word, 0) + 1
        again = f"#{seen[word]}" if seen[word] > 1 or not word else ""
        labels.append(" ".join(filter(None, (word, again))))
    return labels


def _ratio(first: float, second: float) -> str:
    return f"{second / first:.3f}" if first else ""
