from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from moa_server.target import Target
from moa_server.target.torch_target import TorchTarget

from tests.support.tiny_models import tiny_kernel_target, tiny_model

TargetFactory = Callable[..., Target]


@pytest.fixture(params=["torch", "kernels"])
def make_target(request: pytest.FixtureRequest) -> TargetFactory:
    """A tiny target in float32, on either backend."""

    def make(family: str = "llama", context_length: int | None = None, **changes: Any) -> Target:
        model = tiny_model(family, **changes)
        if request.param == "torch":
            return TorchTarget(model, context_length)
        return tiny_kernel_target(model, context_length, plain=True)

    return make
