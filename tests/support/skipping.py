"""What a test does that cannot run on this machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def cannot_run(reason: str) -> NoReturn:
    """Skips the test, or fails it where MOA_NO_SKIPS=1 says that nothing may skip."""
    if os.environ.get("MOA_NO_SKIPS"):
        pytest.fail(reason)
    pytest.skip(reason)
