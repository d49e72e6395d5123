from __future__ import annotations

import os

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.programs.cores import parse_cores, pin_to_cores

from tests.support.messages import raises


@pytest.mark.parametrize(
    ("text", "cores"), [("", set()), (" ", set()), ("0", {0}), ("0,2-3", {0, 2, 3}), ("1 , 1", {1}), ("4-4", {4})]
)
def test_a_list_of_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-2", "0,,1", "0-99999", "1.5", "0 1"])
def test_what_is_no_list_of_cores(text: str) -> None:
    with raises(ValueError, snapshot("expected cores such as 0 or 0,2-3")):
        parse_cores(text)


def test_a_process_stays_on_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[object] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores), raising=False)
    pin_to_cores(frozenset())
    assert pinned == []
    pin_to_cores(frozenset({1, 2}))
    assert pinned == [{1, 2}]
    with raises(
        ConfigError,
        snapshot(
            "This process may not run on core 7; it may on 0, 1, 2. Name some of these with --cores, or leave it out."
        ),
    ):
        pin_to_cores(frozenset({1, 7}))


def test_a_system_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with raises(ConfigError, snapshot("Processes cannot be pinned to cores on this system. Leave out --cores.")):
        pin_to_cores(frozenset({0}))
