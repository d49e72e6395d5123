"""The head waits for what takes long."""

from __future__ import annotations

import pytest
from moa_server.cluster import ray_head

pytestmark = pytest.mark.system


def test_it_looks_again_until_its_patience_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, list[str]()

    def sleep(_: float) -> None:
        nonlocal now
        now += 40.0

    def look(node: str) -> str:
        asked.append(node)
        if len(asked) != 3:
            raise RuntimeError("not there")
        return "found"

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.sleep", sleep)
    patient = ray_head.patient(look)
    assert patient("node") == "found"
    assert asked == ["node"] * 3
    with pytest.raises(RuntimeError):
        patient("node")
    assert now > ray_head.PATIENCE_SECONDS
