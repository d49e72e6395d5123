"""The pages: few, with short lines and contents; links and named files exist; decisions have their place in the index."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "training" / "data" / "README.md"]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))
FOLDERS = "bench|client|deploy|docs|drafters|kernels|netsim|proto|server|shared|tests|training"
MOST_CHARACTERS = 160
MOST_PAGES, README_LINES, LINES_WITHOUT_CONTENTS, LATEST_CONTENTS = 16, 120, 200, 15
SECTIONS = ["Status", "Context", "Decision", "Consequences"]

for_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines, without code, tables, and sections that a program wrote."""
    fenced = published = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif marker := re.fullmatch(r"<!-- (.*) -->", line):
            published = not re.match(r"/|end$", marker[1])
        elif not fenced and not published and not line.startswith(("    ", "|")):
            yield number, line


def anchors(page: Path) -> set[str]:
    """What links to headings of a page end in, as GitHub makes them."""
    return {anchor(line) for line in page.read_text("utf-8").splitlines() if line.startswith("#")}


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


@for_every_page
def test_links_lead_somewhere_in_the_repository(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, section = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_relative_to(ROOT), target
        assert linked.exists(), target
        assert not section or section in anchors(linked), target


@for_every_page
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*(?:/|\.\w+))`", page.read_text("utf-8")):
        assert (ROOT / name).exists(), name


def test_where_to_look_first_names_what_is_there() -> None:
    section = (
        (ROOT / "docs/architecture.md").read_text("utf-8").split("\n## Where to look first\n")[1].split("\n## ")[0]
    )
    named = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", section)
    assert len(named) > 5
    for name, path in named:
        words = re.findall(
            r"^ *(?:async )?(?:class|def) (\w+)|^(\w+) = ", (ROOT / path).read_text("utf-8"), re.MULTILINE
        )
        assert set(name.split(".")) <= {one or other for one, other in words}, name


def test_pages_that_deploy_names_exist() -> None:
    """Alerts lead to their sections, and comments to what explains them."""
    files = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {"", ".yml", ".yaml", ".service", ".sh"}]
    named = {
        found
        for path in files
        if path.is_file()
        for found in re.findall(r"\b(docs/[\w/.-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8"))
    }
    assert len(named) > 10
    assert [page for page, _ in named if not (ROOT / page).exists()] == []
    assert [(page, section) for page, section in named if section and section not in anchors(ROOT / page)] == []


def test_pages_that_code_names_exist() -> None:
    """Hints and comments lead somewhere."""
    sources = [path for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py")]
    named = {page for path in sources for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md\b", path.read_text("utf-8"))}
    assert len(named) > 10
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def test_the_clients_of_the_endpoint_that_were_tried_are_named() -> None:
    """With the version that is installed for it, of each package that the tests of clients add."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    pins = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    packages = {match[0] for each in extras["test-clients"] if (match := re.match(r"[\w.-]+", each))} - {"moa-split"}
    tried = {f"{name} {version}" for name, version in pins if name in packages}
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert (len(tried), [each for each in tried if each not in page]) == (len(packages), [])


def test_nothing_is_installed_or_required_by_a_name_that_is_not_ours() -> None:
    """In the package registry `moa` and `netsim` are programs of others, and anybody could take `moa-drafters`."""
    project, drafters = (
        tomllib.loads((ROOT / path).read_text("utf-8"))["project"]
        for path in ("pyproject.toml", "drafters/pyproject.toml")
    )
    extras = "|".join(project["optional-dependencies"])
    # NAME[extra]; a name among the arguments of pip, pipx or uv; a requirement; but no path.
    ours, free = r"((?:moa|netsim)[\w-]*)", r"(?<![\w./=-])"
    installed = re.compile(
        rf"{free}{ours}\[(?:{extras})[\],]"
        rf"|\b(?:pipx?|uv tool) (?:install|inject|wheel|download)\b[^`&;|\n]*?{free}{ours}(?=['\"\s`]|$)"
        rf"|\"{ours}[=<>~]=|(moa[\w-]*-drafters)\b",
        re.MULTILINE,
    )
    folders = [path for folder in [*FOLDERS.split("|"), ".ci", ".github"] for path in (ROOT / folder).rglob("*")]
    texts = [path for path in folders if path.suffix in {"", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ".txt"}]
    texts += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    texts = [path for path in texts if path.is_file() and path.name != "CHANGELOG.md" and path != Path(__file__)]
    strange = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts
        for found in installed.finditer(path.read_text("utf-8"))
        if {*filter(None, found.groups())} - {project["name"], drafters["name"]}
    }
    assert sorted(strange) == []


@for_every_page
def test_nothing_points_outside_the_repository(page: Path) -> None:
    assert "../shared/data" not in page.read_text("utf-8")
    assert "../shared/traces" not in page.read_text("utf-8")


@for_every_page
def test_a_long_page_begins_with_its_contents(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    if len(lines) <= LINES_WITHOUT_CONTENTS:
        return
    headings = [line for line in lines if line.startswith("## ")]
    first = lines.index("**Contents:**")
    listed = lines[first + 1 : lines.index("", first)]
    assert first < LATEST_CONTENTS
    assert [re.sub(r".*\]\((#.*)\)", r"\1", line) for line in listed] == [f"#{anchor(line)}" for line in headings]


@for_every_page
def test_lines_are_short(page: Path) -> None:
    longest = {number: re.sub(r"https?://\S+", "", line) for number, line in prose(page)}
    assert not [number for number, line in longest.items() if len(line) > MOST_CHARACTERS]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decisions_have_one_layout_and_are_in_the_index(page: Path) -> None:
    text = page.read_text("utf-8")
    number, title = re.findall(r"\A# (\d+)\. (.+)\n", text)[0]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:4] == SECTIONS
    assert int(number) == int(page.name[:4])
    assert f"| [{number}]({page.name}) | {title} | " in (page.parent / "index.md").read_text("utf-8")
