from __future__ import annotations

import os

import pytest
from moa_shared.programs.secret_files import open_to_others

US, ROOT = 1000, 0


def file_of(owner: int, mode: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, US, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("owner", "mode", "is_open"),
    [
        (US, 0o600, False),
        (US, 0o400, False),
        (US, 0o640, True),
        (US, 0o604, True),
        (ROOT, 0o440, False),  # a Secret of Kubernetes, of which the server's group is told
        (ROOT, 0o640, False),
        (ROOT, 0o660, True),
        (ROOT, 0o644, True),
    ],
)
def test_who_may_use_a_file(monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, is_open: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: US)
    assert open_to_others(file_of(owner, mode)) is is_open


def test_root_s_own_files_are_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)
    assert open_to_others(file_of(ROOT, 0o440))
    assert not open_to_others(file_of(ROOT, 0o400))
