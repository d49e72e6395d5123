from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.library import LocalModel, find_model

from tests.support.messages import raises

MODELS = [
    LocalModel("owner/A:Q4_K_M", "hub", Path("/hub/a")),
    LocalModel("owner/A:q4_k_m", "LM Studio", Path("/studio/a")),
    LocalModel("owner/B:Q8_0", "hub", Path("/hub/b")),
    LocalModel("owner/B:Q8_0", "LM Studio", Path("/studio/b")),
    LocalModel("llama3.2:latest", "ollama", Path("/ollama/c")),
]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("owner/A:Q4_K_M", "/hub/a"),
        ("owner/A:q4_k_m", "/studio/a"),
        ("llama3.2", "/ollama/c"),
        ("Llama3.2:LATEST", "/ollama/c"),
        ("owner/A", None),
        ("", None),
    ],
)
def test_a_name(name: str, path: str | None) -> None:
    found = find_model(name, MODELS)
    assert (found and str(found.path)) == path


def test_names_that_lead_nowhere() -> None:
    with raises(
        ModelSourceError,
        snapshot(
            "'OWNER/A:Q4_K_M' may mean several models: owner/A:Q4_K_M of hub (/hub/a), owner/A:q4_k_m of LM Studio (/studio/a). Name one by its path."
        ),
    ):
        find_model("OWNER/A:Q4_K_M", MODELS)
    with raises(
        ModelSourceError,
        snapshot(
            "'owner/B:Q8_0' may mean several models: owner/B:Q8_0 of hub (/hub/b), owner/B:Q8_0 of LM Studio (/studio/b). Name one by its path."
        ),
    ):
        find_model("owner/B:Q8_0", MODELS)
