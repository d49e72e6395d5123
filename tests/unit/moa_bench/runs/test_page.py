"""The page of results: whole, in order, and of one commit and machine unless it marks each table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.report.report import checkout_root
from moa_bench.runs.chapters import Chapter, choose_parts
from moa_bench.runs.page import CLOSING, OPENING, build_page
from moa_bench.runs.registry import CHAPTERS
from moa_bench.suite import Suite
from moa_shared.errors import ConfigError, DataError

from tests.support.messages import raises

Write = Callable[..., None]


def part(name: str) -> Suite[None]:
    return Suite(name, "", "", "measurements/parts.md", None, None, (), lambda effort: 1.0)


ONE = Chapter("first", "First", "What is first?", (part("one"), part("two")))
TWO = Chapter("second", "Second", "What is second?", (part("three"),))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a result and the section that belongs to it."""
    (tmp_path / "docs" / "measurements").mkdir(parents=True)
    (tmp_path / "docs" / "img").mkdir()
    (tmp_path / "results").mkdir()

    def write(
        name: str, commit: str | None = "abc", text: str = "### Table\n\nSee [x](../x.md) and [y](#y).", **more: object
    ) -> None:
        machine = (
            {"machine": {"cpu": "AMD", "cores": 2, "commit": commit, "time": "2026-11-22T01:02:03"}} if commit else {}
        )
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps({"suite": name, **machine, **more}))
        with (tmp_path / "docs" / "measurements" / "parts.md").open("a") as page:
            page.write(f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n")

    return write


def build(folder: Path, *, mixed: bool = False) -> str:
    return build_page((ONE, TWO), folder / "results", folder / "docs", mixed=mixed)


def test_the_page_is_whole_and_says_what_is_missing(tmp_path: Path, write: Write) -> None:
    write("three")
    write("one")
    (tmp_path / "docs" / "img" / "three.png").write_bytes(b"")
    page = build(tmp_path)
    assert page.startswith(OPENING)
    assert page.endswith(CLOSING)
    assert page[page.index("Missing here") :] == snapshot("""\
Missing here:

- first: `moa-bench run first` has not measured two.

## First

What is first?

    moa-bench run first

### one

#### Table

See [x](x.md) and [y](#y).

## Second

What is second?

    moa-bench run second

### three

#### Table

See [x](x.md) and [y](#y).

![three](img/three.png)
<!-- /moa-bench report -->
""")


def test_other_commits_are_refused_and_marked_if_asked_for(tmp_path: Path, write: Write) -> None:
    write("one", quick=True)
    write("two", commit="def")
    write("three", commit=None)
    with raises(
        DataError,
        snapshot(
            "The results are of several commits or machines. one: AMD (2 cores), commit abc; two: AMD (2 cores), commit def. Measure them together (moa-bench run all), or mark each table with its own: --mixed."
        ),
    ):
        build(tmp_path)
    page = build(tmp_path, mixed=True)
    assert [line for line in page.splitlines() if line.startswith("**")] == snapshot(
        [
            "**Measured 2026-11-22 on AMD (2 cores), commit abc.**",
            "**A quick run: it shows that the measurement works, not what things cost.**",
            "**Measured 2026-11-22 on AMD (2 cores), commit def.**",
            "**Computed, not measured.**",
        ]
    )


def test_what_was_computed_belongs_to_any_machine(tmp_path: Path, write: Write) -> None:
    write("one")
    write("three", commit=None)
    assert "### three" in build(tmp_path)


def test_no_results_are_refused(tmp_path: Path, write: Write) -> None:
    with raises(DataError, snapshot("There are no results in TMP/results. Measure first: moa-bench run all.")):
        build(tmp_path)


def test_the_results_of_the_checkout_make_a_page() -> None:
    root = checkout_root()
    assert root is not None
    page = build_page(CHAPTERS, root / "bench" / "results", root / "docs", mixed=True)
    for chapter in ("Over a network", "Without a link", "Users a server", "The parts", "Hostile clients"):
        assert f"\n## {chapter}\n" in page


def test_chapters_are_chosen_by_name_in_the_order_of_the_page() -> None:
    names = [part.name for part in choose_parts((ONE, TWO), ("second", "first"))]
    assert names == ["one", "two", "three"] == [part.name for part in choose_parts((ONE, TWO), ("all",))]
    with raises(ConfigError, "There is no suite 'third'. There are first, second, and all of them: all."):
        choose_parts((ONE, TWO), ("third",))
