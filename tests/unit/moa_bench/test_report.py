"""JSON, tables, and the section of a page that a table replaces."""

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.report import Spread, table, table_of, with_section
from moa_shared.errors import DataError

from tests.support.messages import raises


@pytest.mark.parametrize("broken", ["", "<!-- /micro -->\n<!-- micro -->\n", "<!-- micro -->\n"])
def test_a_page_without_its_markers_is_refused(tmp_path: Path, broken: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(broken)
    with raises(DataError, snapshot("TMP/page.md lacks the lines <!-- micro --> and <!-- /micro -->. Put both back.")):
        with_section(page, "micro", "new")


def test_a_table_is_markdown_and_columns_are_formats_or_make_their_cells() -> None:
    rows = [Spread(1.0, 0.5, 2.0, 3)]
    twice = table_of([("ms", "{0:1}"), ("twice", lambda row: 2 * row.median)], rows)
    assert twice.splitlines()[2] == "| 1.0 (0.5 to 2.0) | 2.0 |"
    assert table(["what", "ms"], [["a", 1], ["b", 2.5]]) == "| what | ms |\n| --- | ---: |\n| a | 1 |\n| b | 2.5 |\n"
