"""The real system for end-to-end tests: `moa-server serve` as a process, one a level of execution for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moa_bench.harness.child import running
from moa_kernels import variant_name
from moa_server.verifier.level_choice import NUMPY
from moa_shared.models import ModelFiles


@pytest.fixture(scope="session")
def float32_server(default_model_files: ModelFiles) -> Iterator[str]:
    """Address of a server of the default target in float32: the level that transformers is the yardstick of."""
    with _served("float32") as address:
        yield address


@pytest.fixture(scope="session")
def exact_server(default_model_files: ModelFiles) -> Iterator[str]:
    """Address of a server of the default target on the default level, int8."""
    if variant_name() == NUMPY:
        pytest.skip("there are no kernels for this CPU")
    with _served("auto") as address:
        yield address


@contextmanager
def _served(execution: str) -> Iterator[str]:
    with running("moa_server.cli", ["serve", "--execution", execution, "--port", "0", "--threads", "1"]) as server:
        yield server.address
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
