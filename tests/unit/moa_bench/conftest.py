"""What every result says about its machine."""

from typing import Any

import pytest


@pytest.fixture
def facts() -> dict[str, Any]:
    return {
        "machine": {
            "time": "2026-01-02T03:04:05+00:00", "cpu": "A CPU", "cores": 2, "packages": {"numpy": "2"},
            "commit": "abc",
        },
        "pinned": True,
        "target": "A target",
    }  # fmt: skip
