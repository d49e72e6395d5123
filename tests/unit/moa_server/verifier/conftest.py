from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from moa_server.verifier import Target

from tests.support.paged_targets import ATTENTIONS, paged_target
from tests.support.tiny_models import tiny_kernel_target, tiny_model

TargetFactory = Callable[..., Target]


@pytest.fixture(params=[*ATTENTIONS, "kernels"])
def make_target(request: pytest.FixtureRequest) -> TargetFactory:
    """A tiny target in float32: the kernels, or torch with each library's attention."""

    def make(family: str = "llama", context_length: int | None = None, **changes: Any) -> Target:
        model = tiny_model(family, **changes)
        if request.param == "kernels":
            return tiny_kernel_target(model, context_length, plain=True)
        return paged_target(model, request.param, context_length)

    return make
