"""What the tests of the kernels share: a variant that is forced, and threads."""

from collections.abc import Iterator

import pytest
from moa_kernels import set_threads
from moa_kernels.library import VARIANT_VARIABLE

from tests.unit.moa_kernels.variants_here import HERE


@pytest.fixture(params=HERE)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIANT_VARIABLE, request.param)
    return str(request.param)


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    set_threads(request.param)
    yield request.param
    set_threads(1)
