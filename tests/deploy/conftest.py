"""The images and the tools of Kubernetes, made once for all tests that try them."""

import pytest

from tests.deploy.charts import Helm, find_helm
from tests.deploy.engine import BUILD_SECONDS, Engine, find_engine


@pytest.fixture(scope="session")
def images() -> Engine:
    """The engine, whose store holds the images of this checkout."""
    engine = find_engine()
    engine.make_base()
    engine.build("server", "client", "netsim")
    # What a killed build left may still be in use.
    engine.call("image", "prune", "--force", seconds=BUILD_SECONDS, check=False)
    return engine


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm and the schemas of what it renders."""
    return find_helm()
