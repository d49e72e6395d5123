"""JSON, tables, and the section of a page that a table replaces."""

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.report import facts_line, table, table_of, to_json, with_section, write_text
from moa_bench.spread import Spread
from moa_shared.errors import ConfigError, DataError

from tests.support.messages import raises

PAGE = "# Page\n\nbefore\n\n<!-- micro -->\nold\n<!-- /micro -->\n\nafter\n"


def test_a_section_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert with_section(page, "micro", "newer\n\n") == PAGE.replace("old", "newer")


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


def test_results_are_json() -> None:
    written = to_json({"ms": [Spread(1.0, 0.5, 2.0, 3)], "file": Path("x")})
    assert json.loads(written) == {"ms": [{"median": 1.0, "low": 0.5, "high": 2.0, "count": 3}], "file": "x"}
    with raises(TypeError, snapshot("set has no JSON form")):
        to_json({1, 2})


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(
        ConfigError, snapshot("TMP/file/result.json cannot be written: File exists. Name another file with --json.")
    ):
        write_text(tmp_path / "file" / "result.json", "{}")


def test_figures_of_a_server_and_a_client_say_what_they_depend_on(facts: dict[str, Any]) -> None:
    facts["machine"] |= {"kernels": "AVX-512 VNNI"}
    assert facts_line(facts) == (
        "Measured 2026-01-02 on A CPU (2 cores, AVX-512 VNNI), one thread each, server and client pinned to a core each; A target; "
        "numpy 2; commit abc.\n"
    )
