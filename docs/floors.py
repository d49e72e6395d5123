"""Writes docs/img/floors.svg and the packages in docs/architecture.md from the imports; --check: fails where stale.

A *room* is a folder or a module directly in a package. Its floor is that of the package's contract of layers in
pyproject.toml; packages without one, and the packages themselves, are put above all that they import.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from moa_bench.report import with_section

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "img" / "floors.svg"
# In reading order.
SOURCES = ("proto/moa", "kernels/moa_kernels", "shared/moa_shared", "server/moa_server", "client/moa_client")
SOURCES += ("training/moa_training", "bench/moa_bench", "netsim/netsim", "testing/moa_testing")
WIDTH, GAP, ROW, TITLE, BELOW = 1200, 10, 20, 24, 14
Floors = list[list[str]]  # from the top down, each from left to right


@dataclass(frozen=True)
class Package:
    """A package of ours, with its rooms on their floors. `lines`: of each room."""

    folder: Path
    name: str
    floors: Floors
    imports: tuple[str, ...]  # other packages
    lines: Mapping[str, int]


def imported(module: Path) -> Iterator[str]:
    """Names of modules that a module imports, wherever it does; of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def above_what_they_import(imports: Mapping[str, set[str]]) -> Floors:
    """Each on the lowest floor above all that it imports; those that import each other share a floor."""
    reached = {name: set(direct) for name, direct in imports.items()}
    for middle in imports:
        for name in imports:
            if middle in reached[name]:
                reached[name] |= reached[middle]

    def floor(name: str) -> int:
        below = [other for other in reached[name] if name not in reached[other]]
        return 1 + max(map(floor, below), default=-1)

    found = {name: floor(name) for name in imports}
    return [
        [name for name in imports if found[name] == level] for level in range(max(found.values(), default=-1), -1, -1)
    ]


def rooms_of(folder: Path) -> dict[str, list[Path]]:
    """The modules of each room by its name."""
    rooms = {path.stem: [path] for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"}
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            rooms[path.name] = sorted(path.rglob("*.py"))
    return dict(sorted(rooms.items()))


def read_package(folder: Path, ours: set[str], contracts: Mapping[str, Floors]) -> Package:
    name = folder.name
    rooms = rooms_of(folder) if about(folder / "__init__.py") else {}  # the wire is generated
    used = {room: {one for module in modules for one in imported(module)} for room, modules in rooms.items()}
    inside = {
        room: {
            other for other in rooms if other != room and any(f"{one}.".startswith(f"{name}.{other}.") for one in names)
        }
        for room, names in used.items()
    }
    others = {one.partition(".")[0] for names in used.values() for one in names} & ours - {name}
    lines = {room: sum(len(module.read_bytes().splitlines()) for module in modules) for room, modules in rooms.items()}
    return Package(folder, name, contracts.get(name) or above_what_they_import(inside), tuple(sorted(others)), lines)


def layers() -> dict[str, Floors]:
    """The floors of each package that has a contract of layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = [each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    return {each["containers"][0]: [line.split(" | ") for line in each["layers"]] for each in found}


def about(path: Path) -> str:
    """The first sentence of a docstring."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def thousands(lines: int) -> str:
    return f"{lines / 1000:.1f}k"


def written(packages: list[Package]) -> str:
    """What is between the page's markers."""
    rows = [
        f"![Packages above those that they import, with their rooms and lines]({PICTURE.relative_to(PAGE.parent)})\n"
    ]
    rows += ["| package | what it is | lines | imports |", "| --- | --- | ---: | --- |"]
    for each in packages:
        named = each.folder.relative_to(ROOT)
        what = about(each.folder / "__init__.py") or "The wire, generated from moa.proto."
        lines = thousands(sum(each.lines.values())) if each.lines else "generated"
        rows.append(f"| `{named}/` | {what} | {lines} | {', '.join(each.imports) or 'nothing of ours'} |")
    return "\n".join(rows) + "\n"


def block(package: Package, left: float, bottom: float, width: float) -> list[str]:
    """A package as SVG: a title, and a row of boxes for each floor."""
    top = bottom - TITLE - ROW * len(package.floors)
    height = bottom - top
    lines = [
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="#eef2f7" stroke="#4a5a6a"/>',
        f'<text x="{left + width / 2:g}" y="{top + 16:g}" font-weight="bold">{escape(package.name)}</text>',
    ]
    for number, floor in enumerate(package.floors):
        share, y = width / len(floor), top + TITLE + ROW * number
        for at, room in enumerate(floor):
            x = left + share * at
            lines += [
                f'<rect x="{x:g}" y="{y:g}" width="{share:g}" height="{ROW}" fill="#ffffff" stroke="#b8c4d0"/>',
                f'<text x="{x + share / 2:g}" y="{y + 14:g}">{escape(room)}'
                f' <tspan font-size="9" fill="#4a5a6a">{thousands(package.lines[room])}</tspan></text>',
            ]
    return lines


def drawn(packages: list[Package]) -> str:
    """The house as SVG: packages beside each other that import none of each other, above those that they import."""
    named = {each.name: each for each in packages}
    storeys = above_what_they_import({each.name: set(each.imports) for each in packages})
    heights = [TITLE + ROW * max(len(named[name].floors) for name in storey) for storey in storeys]
    height = sum(heights) + BELOW * (len(storeys) + 1)
    lines = [f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    bottom = 0
    for storey, tall in zip(storeys, heights, strict=True):
        bottom += BELOW + tall
        width = (WIDTH - GAP * (len(storey) + 1)) / len(storey)
        for at, name in enumerate(storey):
            lines += block(named[name], GAP + at * (width + GAP), bottom, width)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
    return head + 'font-size="12" text-anchor="middle">\n' + "\n".join(lines) + "\n</svg>\n"


def main() -> None:
    contracts, ours = layers(), {Path(source).name for source in SOURCES}
    packages = [read_package(ROOT / source, ours, contracts) for source in SOURCES]
    fresh = {PAGE: with_section(PAGE, "floors", written(packages)), PICTURE: drawn(packages)}
    stale = [path for path, text in fresh.items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            raise SystemExit(f"Stale: {names}. Run `make docs` and commit the result.")
        return
    for path in stale:
        path.write_text(fresh[path], "utf-8")


if __name__ == "__main__":
    main()
