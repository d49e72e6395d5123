"""`moa-bench report`: the table of all results, with a link to where each is shown.

Invariant: figures are in one place, between the markers of their page; this table has none.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from moa_shared.errors import DataError

from moa_bench.report.report import table
from moa_bench.runs.results import ResultOrigin, read_folder

PAGE = "measurements/index.md"  # of docs/
SECTION = "moa-bench report"


def results_table(results: Path, docs: Path) -> str:
    """A row for each result that a page shows, in the order of pages: date, machine and commit.

    Args:
        results: folder of the results.
        docs: folder of the pages.

    Raises:
        DataError: there is no result.
    """
    found = read_folder(results)
    if not found:
        raise DataError(f"There are no results in {results}.", hint="Measure first: moa-bench run all.")
    rows = []
    for page in sorted(docs.rglob("*.md")):
        for heading, name in _sections(page):
            if name in found:
                origin = ResultOrigin.of(found[name])
                link = f"{os.path.relpath(page, (docs / PAGE).parent)}#{_anchor(heading)}"
                measured = (
                    ("computed", "", "") if origin.machine is None else (origin.measured, origin.machine, origin.commit)
                )
                rows.append((f"[{name}]({link})", *measured))
    return table(("result", "measured", "machine", "commit"), rows)


def _sections(page: Path) -> Iterator[tuple[str, str]]:
    """The heading above each section that a program wrote, and the section's name."""
    heading = open_section = ""
    for line in page.read_text("utf-8").splitlines():
        if marker := re.fullmatch(r"<!-- (/?)([\w-]+) -->", line):
            open_section = "" if marker[1] else marker[2]
            if open_section:
                yield heading, open_section
        elif not open_section and re.match(r"#+ ", line):
            heading = line.lstrip("# ")


def _anchor(heading: str) -> str:
    """What a link to a heading ends in, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
