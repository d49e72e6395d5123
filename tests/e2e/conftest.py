"""The real system for end-to-end tests: `moa-server serve` as a process, one a level of execution for all tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moa_bench.harness.child import running
from moa_bench.harness.links import find_links, linked
from moa_kernels import variant_name
from moa_shared.models import ModelFiles

from tests.e2e.endpoints import KEY, Endpoints
from tests.support.daemon_home import daemon_home


@pytest.fixture(scope="session")
def float32_server(default_model_files: ModelFiles) -> Iterator[str]:
    """Address of a server of the default target in float32: the level that transformers is the yardstick of."""
    with _served("float32") as address:
        yield address


@pytest.fixture(scope="session")
def exact_server(default_model_files: ModelFiles) -> Iterator[str]:
    """Address of a server of the default target on the default level, int8."""
    if variant_name() == "numpy":
        pytest.skip("there are no kernels for this CPU")
    with _served("auto") as address:
        yield address


@pytest.fixture(scope="session")
def endpoints(exact_server: str) -> Iterator[Endpoints]:
    """The endpoint behind a link to the exact server, and one without link and drafts."""
    environment = os.environ | {"MOA_ENDPOINT_KEY": KEY}
    with (
        linked(find_links(("RTT 100 ms",))[0], exact_server) as link,
        daemon_home(environment, SERVER=link.address, STANDALONE="never") as behind_link,
        daemon_home(environment, SERVER=exact_server, DRAFTER="none", DRAFTING="off") as plain,
    ):
        for home in (behind_link, plain):
            code, _, err = home.run("daemon", "start")
            assert code == 0, err
        yield Endpoints(behind_link.status()["url"], plain.status()["url"], link)


@contextmanager
def _served(execution: str) -> Iterator[str]:
    with running("moa_server.cli", ["serve", "--execution", execution, "--port", "0", "--threads", "1"]) as server:
        yield server.address
        server.process.terminate()
        assert server.process.wait(timeout=100) == 0
