"""Results as JSON for programs and as Markdown tables for people; of repeated measurements medians with quartiles.

A ratio is always taken pair by pair, within one run: on a shared machine the two halves of a pair meet the same
disturbances, two medians of two runs do not.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from moa_shared.errors import ConfigError, DataError, InternalError, NotFoundError
from moa_shared.models.files import OWN_SETTINGS


def checkout_root() -> Path | None:
    """The checkout that this package was installed from (editable), where results and docs live; None elsewhere."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "docs").is_dir() else None


def to_json(result: object) -> str:
    """`result` (dataclasses, mappings, lists) as indented JSON with a final newline."""
    return json.dumps(result, indent=1, default=_plain) + "\n"


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        hint = "Name another file with --json."
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", hint=hint) from error


Column = tuple[str, str | Callable[[Any], object]]
"""A head, and the format of a row below it, as in ("ms", "{0.ms:1}"), or what makes its cell."""


def table_of(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    cells = [[form.format(row) if isinstance(form, str) else form(row) for _, form in columns] for row in rows]
    return table([head for head, _ in columns], cells)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def with_section(page: Path, name: str, text: str) -> str:
    """A page with `text` between the lines `<!-- name -->` and `<!-- /name -->`."""
    old = page.read_text("utf-8")
    opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found_opening, rest = old.partition(opening)
    _, found_closing, after = rest.partition(closing)
    if not found_opening or not found_closing:
        raise DataError(f"{page} lacks the lines {opening.strip()} and {closing}.", hint="Put both back.")
    return before + opening + text.rstrip("\n") + f"\n{closing}{after}"


def facts_line(result: Mapping[str, Any]) -> str:
    """One paragraph that says on what, with what and how the figures were measured."""
    machine = result["machine"]
    pinned = "server and client pinned to a core each" if result["pinned"] else "not pinned"
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    shares = machine.get("large_pages")  # which older results do not say
    pinned += f", {min(shares):.0%} of the weights in large pages" if shares else ""
    return (
        f"Measured {machine['time'][:10]} on {processor(machine)}, one thread each, {pinned}; "
        f"{result['target']}; {packages}; commit {machine['commit'] or 'unknown'}.\n"
    )


def processor(machine: Mapping[str, Any]) -> str:
    """A machine in the facts of a result: its CPU, its cores, and the instructions that the kernels use of it."""
    kernels = f", {machine['kernels']}" if "kernels" in machine else ""  # which older results do not say
    return f"{machine['cpu']} ({machine['cores']} cores{kernels})"


def at_temperature(said: str) -> str:
    """How answers were sampled, by what `--temperature` said."""
    return {"0": "greedy", OWN_SETTINGS: "sampled as the model's files say"}.get(said, f"at temperature {said}")


def read_result(path: Path) -> dict[str, Any]:
    """A result as `moa-bench` writes it."""
    hint = "Name a file that moa-bench has written."
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"There is no result {path}.", hint="Measure first: moa-bench run SUITE.") from None
    except (ValueError, OSError):
        raise DataError(f"{path} cannot be read as a result.", hint=hint) from None
    if not isinstance(result, dict) or "suite" not in result:
        raise DataError(f"{path} is not a result of moa-bench.", hint=hint)
    return result


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: read_result(path) for path in sorted(folder.glob("*.json"))}


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            raise InternalError("There are no measurements to take a spread of.")
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        return cls(round(median, 4), round(low, 4), round(high, 4), len(values))

    def __format__(self, digits: str) -> str:
        """`median (low to high)`, as in f"{spread:2}"."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def paired_ratio(values: Sequence[float], bases: Sequence[float]) -> Spread:
    return Spread.of([value / base for value, base in zip(values, bases, strict=True)])


def median_of(spread: Spread | None) -> str:
    """The median with two digits; empty where there is none."""
    return "" if spread is None else f"{spread.median:.2f}"
