"""`moa-bench report`: the page of results, built whole from the results, their sections, and the text of people.

Invariant: nobody writes in the page itself. Text that people write about a chapter is in `pages/CHAPTER.md` next to
this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError

from moa_bench.report.report import section_of
from moa_bench.runs.chapters import Chapter
from moa_bench.runs.results import ResultOrigin, read_folder
from moa_bench.suite import Suite

OPENING, CLOSING = "<!-- moa-bench report -->\n", "<!-- /moa-bench report -->\n"


def build_page(chapters: Sequence[Chapter], results: Path, docs: Path, *, mixed: bool) -> str:
    """The whole page.

    Args:
        results: folder of the results.
        docs: folder of the pages, whose sections hold the tables, and of the pictures.
        mixed: take results of several commits or machines, and mark each table with its own.
    """
    found = read_folder(results)
    parts = [part for chapter in chapters for part in chapter.parts if part.name in found]
    if not parts:
        raise DataError(f"There are no results in {results}.", hint="Measure first: moa-bench run all.")
    origins = {part.name: ResultOrigin.of(found[part.name]) for part in parts}
    if not mixed:
        refuse_mixture(origins)
    sections = [_section(chapter, found, origins, docs, mixed=mixed) for chapter in chapters]
    return "\n".join([OPENING + "# Results\n", page_text("opening"), _missing(chapters, found), *sections]) + CLOSING


def refuse_mixture(origins: Mapping[str, ResultOrigin]) -> None:
    """Results of one page come from one commit and one machine; what was computed has neither."""
    groups: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin.where is not None:
            groups.setdefault(origin.where, []).append(name)
    if len(groups) > 1:
        named = "; ".join(f"{', '.join(names)}: {where}" for where, names in groups.items())
        raise DataError(
            f"The results are of several commits or machines. {named}.",
            hint="Measure them together (moa-bench run all), or mark each table with its own: --mixed.",
        )


def page_text(name: str) -> str:
    """What people wrote for a section; empty if nothing."""
    text = files("moa_bench.runs").joinpath("pages", f"{name}.md")
    return text.read_text("utf-8") if text.is_file() else ""


def _missing(chapters: Sequence[Chapter], found: Mapping[str, Any]) -> str:
    lines = []
    for chapter in chapters:
        absent = [part.name for part in chapter.parts if part.name not in found]
        if absent:
            lines.append(f"- {chapter.name}: `moa-bench run {chapter.name}` has not measured {', '.join(absent)}.")
    return "Missing here:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _section(
    chapter: Chapter, found: Mapping[str, Any], origins: Mapping[str, ResultOrigin], docs: Path, *, mixed: bool
) -> str:
    there = [part for part in chapter.parts if part.name in found]
    if not there:
        return ""
    pieces = [
        f"## {chapter.title}\n",
        f"{chapter.answers}\n",
        f"    moa-bench run {chapter.name}\n",
        page_text(chapter.name),
    ]
    for part in there:
        pieces.append(f"### {part.name}\n")
        if mixed:
            origin = origins[part.name]
            where = (
                "Computed, not measured" if origin.where is None else f"Measured {origin.measured} on {origin.where}"
            )
            pieces.append(f"**{where}.**\n")
        if found[part.name].get("quick"):
            pieces.append("**A quick run: it shows that the measurement works, not what things cost.**\n")
        pieces.append(_tables(docs, part))
        drawn = [f"{part.name}{ending}.png" for ending in part.pictures]
        pieces += [f"![{part.name}](img/{name})\n" for name in drawn if (docs / "img" / name).is_file()]
    return "\n".join(piece for piece in pieces if piece)


def _tables(docs: Path, part: Suite[Any]) -> str:
    """The section that was written with the result: its headings below ours, its links from docs/."""
    text = section_of(docs / part.page, part.name)
    text = re.sub(r"^(#{3,5}) ", r"\1# ", text, flags=re.MULTILINE)
    folder = Path(part.page).parent

    def relink(found: re.Match[str]) -> str:
        return f"]({os.path.normpath(folder / found[1])})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", relink, text)
