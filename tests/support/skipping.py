"""What a test does that cannot run on this machine."""

import os
from typing import NoReturn

import pytest
from hypothesis import settings


def cannot_run(reason: str) -> NoReturn:
    """Skips the test, or fails it where MOA_NO_SKIPS=1 says that nothing may skip."""
    if os.environ.get("MOA_NO_SKIPS"):
        pytest.fail(reason)
    pytest.skip(reason)


_IN_CI = 100  # of the profile `ci`


def examples(in_ci: int) -> int:
    """This many in CI, and elsewhere in proportion to the profile: a test that is much cheaper or dearer than most."""
    return max(1, settings().max_examples * in_ci // _IN_CI)
