"""How many examples a property test tries, beyond what its profile says (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

_IN_CI = 100  # of the profile `ci`


def examples(in_ci: int) -> int:
    """This many in CI, and elsewhere in proportion to the profile: a test that is much cheaper or dearer than most."""
    return max(1, settings().max_examples * in_ci // _IN_CI)
